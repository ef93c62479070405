-- The rest of a ramp is skipped.
update capabilities set ramp_limit = null, ramp_ok = 0 where name = $1 and tenant_id is not distinct from $2
