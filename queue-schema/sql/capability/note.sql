insert into capability_events (capability, tenant_id, actor, action, reason, epoch)
select name, tenant_id, $3, 'note', $4, epoch from capabilities where name = $1 and tenant_id is not distinct from $2
