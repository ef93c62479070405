-- One way: a breaker that is off keeps its first reason and actor; the later act goes into the history (B19).
-- The row is locked first, so two operators see each other.
with c as (
  select * from capabilities where name = $1 and tenant_id is not distinct from $2 for update),
flipped as (
  update capabilities t set enabled = false, reason = $4, changed_by = $3, changed_at = now(), failure_count = 0, ramp_limit = null, ramp_ok = 0
    from c where t.id = c.id and c.enabled
  returning t.id, t.enabled, t.epoch, t.reason, t.changed_by, t.changed_at),
noted as (
  insert into capability_events (capability, tenant_id, actor, action, reason, epoch)
  select $1, $2, $3, case when c.enabled then 'off' else 'already_off' end, $4, c.epoch from c)
select (f.id is not null) as changed, coalesce(f.enabled, c.enabled) as enabled, c.epoch,
       coalesce(f.reason, c.reason) as reason, coalesce(f.changed_by, c.changed_by) as changed_by, coalesce(f.changed_at, c.changed_at) as changed_at
  from c left join flipped f on true
