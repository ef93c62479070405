-- What is less than whole in the house, over all tenants and naming none: a tenant's own breakers and endpoints are a number. No row: all well.
-- $1 seconds after which a worker that was not seen is not counted on.
--
-- no_worker: work waits that nothing but a worker is missing for; and reading what is handed in, and questions, which come at any moment.
with served as materialized (
  select distinct k as kind from workers w cross join unnest(w.kinds) as k
   where w.stopped_at is null and w.lost_at is null and w.seen_at > now() - make_interval(secs => $1)),
waits as (
  select distinct l.kind, l.capability from lines l
   where l.kind <> 'notice'
     and not exists (select from capabilities c where c.name = l.capability and not c.enabled and (c.tenant_id is null or c.tenant_id = l.tenant_id))
     and exists (select from jobs j where j.line_id = l.id and j.status = 'waiting' and j.avail_at <= now())
  union
  values ('extract', null), ('question', 'embedding'))
select 'stopped' as code, c.name as capability, null::text as endpoint, null::text as kind, count(c.tenant_id) as tenants,
       extract(epoch from now() - min(c.changed_at))::float8 as seconds
  from capabilities c where not c.enabled group by c.name, c.tenant_id is null
union all
select case when e.enabled then 'outage' else 'refused' end, e.capability, case when e.owner_tenant_id is null then e.name end, null, count(distinct e.owner_tenant_id),
       extract(epoch from now() - min(case when not e.enabled then e.tripped_at end))::float8
  from endpoints e where case when e.enabled then e.outage_streak > 0 else e.tripped_at is not null end
 group by 1, 2, 3, e.owner_tenant_id is null
union all
select 'no_worker', w.capability, null, w.kind, 0, null from waits w where w.kind not in (select kind from served)
union all
select 'no_mail', null, null, 'notice', 0, null
 where exists (select from notices where opening = 'due' or closing = 'due') and not exists (select from served where kind = 'notice')
 order by 1, 2, 3, 4
