update endpoints set due_at = '-infinity', outage_streak = 0 where name = $1
