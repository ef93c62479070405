update endpoints set last_ok_at = now(), outage_streak = 0, due_at = case when outage_streak > 0 then '-infinity' else due_at end
 where id = $1 and (last_ok_at is null or last_ok_at < now() - interval '1 second' or outage_streak > 0)
