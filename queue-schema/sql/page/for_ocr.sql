-- With whether its place still stands: the Space is there and the one who asked is still a member of it (B27).
select p.id, p.document_id, p.no, p.image_key,
       d.space_id is not null and exists (select from space_members m where m.space_id = d.space_id and m.user_id = d.user_id) as place_stands
  from pages p join documents d on d.id = p.document_id where p.id = $1 and p.image_key is not null
