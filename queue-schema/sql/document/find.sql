select d.id, d.user_id, d.space_id, d.conversation, d.title, d.media_type, d.byte_count, d.metadata, d.status, d.page_count,
       (select count(*) from blocks b where b.document_id = d.id) as block_count,
       (select count(*) from blocks b where b.document_id = d.id and b.embedded_at is null) as pending_count,
       (select min(c.name) from capabilities c where c.name = 'embedding' and not c.enabled and (c.tenant_id is null or c.tenant_id = d.tenant_id)) as stopped,
       coalesce((select u.email <> '' from users u where u.id = $2 and u.tenant_id = $1), false) as has_address, d.error, d.created_at, d.processed_at
  from documents d join space_members m on m.space_id = d.space_id and m.user_id = $2
 where d.id = $3 and d.tenant_id = $1
