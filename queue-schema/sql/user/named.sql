select u.tenant_id, u.id from users u join tenants t on t.id = u.tenant_id where t.name = $1 and u.name = $2
