-- Breakers that are off for everybody or for this tenant.
select name, min(changed_at) as since from capabilities where not enabled and (tenant_id is null or tenant_id = $1) group by name order by name
