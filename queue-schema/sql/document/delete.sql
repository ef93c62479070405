delete from documents where id = $2 and tenant_id = $1
