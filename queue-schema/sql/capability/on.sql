-- A new epoch, so that evidence from before trips nothing (B18), and a ramp of one unless $5 (B22).
with c as (
  select * from capabilities where name = $1 and tenant_id is not distinct from $2 for update),
flipped as (
  update capabilities t set enabled = true, epoch = t.epoch + 1, reason = $4, changed_by = $3, changed_at = now(),
         ramp_limit = case when $5 then null else 1 end, ramp_ok = 0
    from c where t.id = c.id and not c.enabled
  returning t.id, t.enabled, t.epoch, t.reason, t.changed_by, t.changed_at),
noted as (
  insert into capability_events (capability, tenant_id, actor, action, reason, epoch)
  select $1, $2, $3, case when c.enabled then 'already_on' else 'on' end, $4, coalesce(f.epoch, c.epoch) from c left join flipped f on true)
select (f.id is not null) as changed, coalesce(f.enabled, c.enabled) as enabled, coalesce(f.epoch, c.epoch) as epoch,
       coalesce(f.reason, c.reason) as reason, coalesce(f.changed_by, c.changed_by) as changed_by, coalesce(f.changed_at, c.changed_at) as changed_at
  from c left join flipped f on true
