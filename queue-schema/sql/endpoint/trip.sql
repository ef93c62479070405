-- A refusal stops the endpoint first (B15): one way, the first reason stays, later ones are counted, evidence from before it or its
-- capability's breaker ($5; a tenant's that is not made yet is in its first epoch) was last turned on does nothing (B18). Then: is there another
-- that could serve the same jobs? Another engine inside the worker does not count when it stands behind a remote one (claim/take.sql
-- says why), and a tenant's own endpoints are not replaced by everybody's: what was meant for the tenant's own provider is not sent to
-- another one unasked.
with e as (
  select o.*, o.epoch = $2 and $5 = coalesce(
           (select c.epoch from capabilities c where c.name = o.capability and c.tenant_id is not distinct from o.owner_tenant_id), 1) as current
    from endpoints o where o.id = $1 for update of o),
tripped as (
  update endpoints t set enabled = false, tripped_at = now(), refusal_count = 1, reason = $4, changed_by = $3, changed_at = now()
    from e where t.id = e.id and e.enabled and e.current
  returning t.id),
counted as (
  update endpoints t set refusal_count = t.refusal_count + 1 from e where t.id = e.id and not e.enabled
  returning t.id),
noted as (
  insert into endpoint_events (capability, tenant_id, endpoint, actor, action, reason, epoch)
  select e.capability, e.owner_tenant_id, e.name, $3, case when e.current then 'off' else 'stale_evidence' end, $4, $2 from e where e.enabled)
select case when exists (select from tripped) then 'off' when exists (select from counted) then 'counted' else 'stale' end as what,
       e.capability, e.owner_tenant_id,
       exists (select from endpoints o
                where o.capability = e.capability and o.id <> e.id and o.enabled and o.owner_tenant_id is not distinct from e.owner_tenant_id
                  and (o.url is not null or o.rank < e.rank)) as another_left
  from e
