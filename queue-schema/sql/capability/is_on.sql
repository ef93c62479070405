select exists (select from capabilities where name = $1 and tenant_id is null and enabled and epoch = $2)
