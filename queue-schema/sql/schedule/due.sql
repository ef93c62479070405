-- Missed rounds are not made up for: the next one is the first that is still to come.
update schedules s
   set next_at = s.next_at + s.every * ceil(greatest(extract(epoch from now() - s.next_at) / extract(epoch from s.every), 0) + 0.000001)
 where s.name in (select name from schedules where enabled and next_at <= now() for update skip locked)
returning s.kind, s.payload
