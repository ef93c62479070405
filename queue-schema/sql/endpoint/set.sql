-- A changed endpoint is a new one to the evidence against the old: epoch + 1, backoff forgotten, breaker as it was.
insert into endpoints (name, capability, protocol, url, model, dims, key_env, trust, batch, timeout_ms, rank, changed_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (name) do update
   set capability = $2, protocol = $3, url = $4, model = $5, dims = $6, key_env = $7, trust = $8, batch = $9, timeout_ms = $10, rank = $11,
       changed_by = $12, changed_at = now(), epoch = endpoints.epoch + 1, due_at = '-infinity', outage_streak = 0
returning id
