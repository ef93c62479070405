-- The Space must be one of the user's: the select is the check, and no row means it was none.
insert into documents (tenant_id, user_id, space_id, conversation, title, media_type, byte_count, sha256, blob_key, level, metadata)
select $1, $2, s.id, $4, $5, $6, $7, $8, $9, $10, $11
  from spaces s join space_members m on m.space_id = s.id and m.user_id = $2
 where s.id = $3 and s.tenant_id = $1
returning id, greatest(coalesce(level, 3), (select floor_level from spaces where id = $3))::smallint as level
