-- A tenant's own breaker for a capability there is, made when first needed (B16). Everybody's are made by the migrations.
insert into capabilities (name, tenant_id)
select c.name, t.id from capabilities c join tenants t on t.id = $2 where c.name = $1 and c.tenant_id is null
on conflict do nothing
