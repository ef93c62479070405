update incidents i
   set failure_count = i.failure_count + 1,
       endpoints = array(select distinct name from (select unnest(i.endpoints) as name
                           union all select e.name from endpoints e where e.capability = $1 and e.owner_tenant_id is not distinct from $2 and e.tripped_at is not null) n
                          order by name)
 where i.capability = $1 and i.tenant_id is not distinct from $2 and i.closed_at is null
