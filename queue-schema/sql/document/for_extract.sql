-- With whether its place still stands: the Space is there and the one who asked is still a member of it (B27).
select d.id, d.title, d.media_type, d.blob_key,
       d.space_id is not null and exists (select from space_members m where m.space_id = d.space_id and m.user_id = d.user_id) as place_stands
  from documents d where d.id = $1 and d.version = $2
