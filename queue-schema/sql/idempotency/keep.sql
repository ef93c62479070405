update idempotency_keys set response = $5 where tenant_id = $1 and user_id = $2 and route = $3 and key = $4
