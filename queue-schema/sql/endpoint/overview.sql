-- As an operator sees them: with the time of the next probe (or of the next call, after a 429), and the remote endpoint that an engine inside
-- the workers only stands behind (claim/take.sql says why), up to which level.
select e.id, e.name, e.capability, e.protocol, e.url, e.model, e.dims, e.key_env, e.owner_tenant_id, e.trust, e.batch, e.timeout_ms, e.rank, e.enabled, e.epoch,
       e.outage_streak, e.last_ok_at, e.tripped_at, e.refusal_count, e.reason, e.changed_by, e.changed_at,
       case when isfinite(e.due_at) and e.due_at > now() then e.due_at end as due_at, e.probe_error,
       r.name as stands_behind, r.trust as stands_behind_to
  from endpoints e
  left join lateral (
    select r.name, max(r.trust) over () as trust from endpoints r
     where e.url is null and r.capability = e.capability and r.url is not null and r.rank < e.rank and (r.enabled or r.tripped_at is not null)
       and (r.owner_tenant_id is null or r.owner_tenant_id = e.owner_tenant_id)
     order by r.rank, r.id limit 1) r on true
 order by e.capability, e.rank, e.id
