-- What is held is at or below the newest job there is now (D18).
update incidents set enabled_at = now(), last_job_id = (select coalesce(max(id), 0) from jobs), look_at = now()
 where capability = $1 and tenant_id is not distinct from $2 and closed_at is null and enabled_at is null
returning id
