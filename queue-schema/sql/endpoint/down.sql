-- The first failure of an outage opens the streak; the volley that was in flight with it does not lengthen it, only
-- probes do (take_probe). Says whether it was well until now: the subselect sees the row as it was.
update endpoints set outage_streak = greatest(outage_streak, 1),
       due_at = case when outage_streak = 0 then now() + make_interval(secs => $3) else due_at end
 where id = $1 and epoch = $2
returning (select o.outage_streak = 0 from endpoints o where o.id = $1) as newly
