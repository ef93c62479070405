-- By hand. Off keeps a refusal's first reason, and makes it the operator's word: turning its capability on leaves it off, and nobody waits
-- for it any more. On forgets it, and evidence from before it does nothing (epoch + 1).
with e as (
  select * from endpoints where name = $1 for update),
flipped as (
  update endpoints t
     set enabled = $2, epoch = t.epoch + $2::int, tripped_at = null, refusal_count = 0,
         changed_by = $3, reason = $4, changed_at = now(), due_at = '-infinity', outage_streak = 0
    from e where t.id = e.id and e.enabled <> $2
  returning t.epoch),
meant as (update endpoints t set tripped_at = null from e where t.id = e.id and not e.enabled and not $2),
noted as (
  insert into endpoint_events (capability, tenant_id, endpoint, actor, action, reason, epoch)
  select e.capability, e.owner_tenant_id, e.name, $3,
         case when e.enabled = $2 then case when $2 then 'already_on' else 'already_off' end when $2 then 'on' else 'off' end, $4, coalesce(f.epoch, e.epoch)
    from e left join flipped f on true)
select e.enabled <> $2 as changed, e.reason, e.changed_by, e.changed_at from e
