with doc as (select id, tenant_id, space_id, level from documents where id = $1 and space_id is not null for share),
made as (
  insert into blocks (tenant_id, space_id, document_id, page_no, no, content, level)
  select doc.tenant_id, doc.space_id, doc.id, b.page_no, b.no, b.content, doc.level
    from doc, unnest($2::int[], $3::int[], $4::text[]) as b(page_no, no, content)
  on conflict (document_id, page_no, no) do nothing
  returning id)
select id from made order by id
