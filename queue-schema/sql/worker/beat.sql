update workers set seen_at = now(), lost_at = null where boot_id = $1
