-- Breakers and the endpoints behind them, newest first.
select capability, tenant_id, endpoint, at, actor, action, reason, epoch
  from (select capability, tenant_id, null as endpoint, at, actor, action, reason, epoch, id from capability_events
        union all
        select capability, tenant_id, endpoint, at, actor, action, reason, epoch, id from endpoint_events) e
 where $1::text is null or capability = $1 order by at desc, id desc limit $2
