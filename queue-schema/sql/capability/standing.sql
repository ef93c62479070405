select exists (select from capabilities where name = $1 and tenant_id is not distinct from $2 and enabled and epoch = $3)
   and exists (select from endpoints where id = $4 and enabled and epoch = $5) as still_on,
       -- whether it has answered anybody since it, or its capability, was last turned on
       coalesce((select e.last_ok_at > greatest(e.changed_at, (select max(changed_at) from capabilities where name = $1 and (tenant_id is null or tenant_id = $2)))
                   from endpoints e where e.id = $4), false) as has_answered
