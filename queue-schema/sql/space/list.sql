select s.id, s.name, s.created_at, (select count(*) from documents d where d.space_id = s.id and d.tenant_id = $1) as document_count
  from spaces s join space_members m on m.space_id = s.id and m.user_id = $2
 where s.tenant_id = $1
 order by s.name, s.id
