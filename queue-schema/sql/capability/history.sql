select capability, tenant_id, at, actor, action, reason, epoch from capability_events
 where $1::text is null or capability = $1 order by id desc limit $2
