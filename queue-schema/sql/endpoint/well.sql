-- Says whether an outage ended with this answer: the subselect sees the row as it was.
update endpoints set last_ok_at = now(), outage_streak = 0, due_at = case when outage_streak > 0 then '-infinity' else due_at end
 where id = $1 and (last_ok_at is null or last_ok_at < now() - interval '1 second' or outage_streak > 0)
returning (select o.outage_streak > 0 from endpoints o where o.id = $1)
