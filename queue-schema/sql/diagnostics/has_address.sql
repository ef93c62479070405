select coalesce((select u.email <> '' from users u where u.id = $2 and u.tenant_id = $1), false)
