insert into tokens (tenant_id, user_id, name, hash, expires_at)
values ($1, $2, $3, $4, now() + make_interval(secs => $5))
returning id, expires_at
