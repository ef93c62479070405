insert into space_members (tenant_id, space_id, user_id) values ($1, $2, $3) on conflict do nothing
