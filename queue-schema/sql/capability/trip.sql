-- A refusal trips only while on and only with evidence from this epoch (B18); a later one is counted, so that the eleventh
-- looks like the eleventh and not like the first (P5, P6).
with c as (
  select * from capabilities where name = $1 and tenant_id is not distinct from $2 for update),
tripped as (
  update capabilities t set enabled = false, reason = $5, changed_by = $4, changed_at = now(), failure_count = 1, ramp_limit = null, ramp_ok = 0
    from c where t.id = c.id and c.enabled and c.epoch = $3
  returning t.id),
counted as (
  update capabilities t set failure_count = t.failure_count + 1 from c where t.id = c.id and not c.enabled
  returning t.id),
noted as (
  insert into capability_events (capability, tenant_id, actor, action, reason, epoch)
  select $1, $2, $4, case when c.epoch = $3 then 'off' else 'stale_evidence' end, $5, $3 from c where c.enabled)
select case when exists (select from tripped) then 'off' when exists (select from counted) then 'counted' else 'stale' end from c
