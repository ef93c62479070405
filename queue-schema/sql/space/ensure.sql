insert into spaces (tenant_id, name) values ($1, $2)
on conflict on constraint one_space_name_per_tenant do update set name = excluded.name
returning id
