-- What refusals had stopped is asked again with the capability, unless another refusal says otherwise.
with back as (
  update endpoints set enabled = true, tripped_at = null, refusal_count = 0, epoch = epoch + 1, changed_by = $3, reason = $4, changed_at = now(),
         due_at = '-infinity', outage_streak = 0
   where capability = $1 and owner_tenant_id is not distinct from $2 and tripped_at is not null and not enabled
  returning name, epoch)
insert into endpoint_events (capability, tenant_id, endpoint, actor, action, reason, epoch)
select $1, $2, name, $3, 'on', $4, epoch from back
returning endpoint
