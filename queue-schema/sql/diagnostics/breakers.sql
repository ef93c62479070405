-- Breakers that are off for everybody or for this tenant, and whether this caller can be told by mail.
select name, min(changed_at) as since, coalesce((select u.email <> '' from users u where u.id = $2 and u.tenant_id = $1), false) as has_address
  from capabilities where not enabled and (tenant_id is null or tenant_id = $1) group by name order by name
