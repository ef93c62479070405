-- A key past its life is taken over; a live one is somebody's, and no row comes back. A key that is just being taken makes
-- this statement wait for that transaction's end.
insert into idempotency_keys (tenant_id, user_id, route, key, request_hash) values ($1, $2, $3, $4, $5)
on conflict (tenant_id, user_id, route, key) do update
   set request_hash = excluded.request_hash, response = null, created_at = now()
 where idempotency_keys.created_at < now() - make_interval(secs => $6)
returning true
