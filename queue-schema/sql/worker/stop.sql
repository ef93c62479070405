update workers set stopped_at = now() where boot_id = $1
