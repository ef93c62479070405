-- Says whether an outage ended with this answer: the row is locked first, so that of many answers one does.
with was as (
  select id, outage_streak from endpoints where id = $1 and (last_ok_at is null or last_ok_at < now() - interval '1 second' or outage_streak > 0) for update)
update endpoints e set last_ok_at = now(), outage_streak = 0, due_at = case when e.outage_streak > 0 then '-infinity' else e.due_at end
  from was where e.id = was.id
returning was.outage_streak > 0
