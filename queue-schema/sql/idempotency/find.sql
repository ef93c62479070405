select request_hash = $5, response from idempotency_keys
 where tenant_id = $1 and user_id = $2 and route = $3 and key = $4 and created_at >= now() - make_interval(secs => $6)
