select id, name, capability, protocol, url, model, dims, key_env, owner_tenant_id, trust, batch, timeout_ms, rank, enabled, epoch, outage_streak, last_ok_at,
       tripped_at, refusal_count, reason, changed_by, changed_at from endpoints where id = $1
