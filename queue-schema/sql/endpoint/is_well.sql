-- Locked against an answer or a failure that would change it: whoever comes second sees the other's row.
select outage_streak = 0 from endpoints where id = $1 for share
