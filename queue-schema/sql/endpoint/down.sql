-- The first failure of an outage opens the streak; the volley that was in flight with it does not lengthen it, only
-- probes do (take_probe). Says whether it was well until now: the row is locked first, or each of a volley would see it well.
with was as (
  select id, outage_streak from endpoints where id = $1 and epoch = $2 for update)
update endpoints e set outage_streak = greatest(e.outage_streak, 1),
       probe_error = case when e.outage_streak > 0 then e.probe_error end,
       due_at = case when e.outage_streak = 0 then now() + make_interval(secs => $3) else e.due_at end
  from was where e.id = was.id
returning was.outage_streak = 0 as newly
