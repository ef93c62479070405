-- A settle that the fence refused, counted where an operator can see it.
update workers set late_settle_count = late_settle_count + $2 where boot_id = $1
