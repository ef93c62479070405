-- The update that changes nothing makes the row come back when it was there before.
insert into users (tenant_id, name) values ($1, $2)
on conflict on constraint one_name_per_tenant do update set name = excluded.name
returning id
