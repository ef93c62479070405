select id, name, capability, protocol, url, model, dims, key_env, trust, batch, timeout_ms, rank, enabled, epoch, outage_streak, last_ok_at from endpoints order by capability, rank, id
