update endpoints set enabled = $2, epoch = epoch + case when $2 and not enabled then 1 else 0 end,
       changed_by = $3, reason = $4, changed_at = now(), due_at = '-infinity', outage_streak = 0
 where name = $1
