-- Off again before it was closed: the same incident goes on, with its first reason (B23).
insert into incidents (capability, tenant_id, opened_by, reason) values ($1, $2, $3, $4)
on conflict (capability, tenant_id) where closed_at is null do update set enabled_at = null, last_job_id = null
returning id
