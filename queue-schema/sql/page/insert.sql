-- The pages of one version of a document; a page that is there already (the job ran before and its follow-ups are open) is
-- left alone. Returns the ones that wait for OCR.
with doc as (select id, tenant_id from documents where id = $1 and version = $2 for share),
made as (
  insert into pages (tenant_id, document_id, no, source, image_key, status, note)
  select doc.tenant_id, doc.id, p.no, p.source, p.image_key, p.status, p.note
    from doc, unnest($3::int[], $4::text[], $5::text[], $6::text[], $7::text[]) as p(no, source, image_key, status, note)
  on conflict (document_id, no) do update set image_key = excluded.image_key, status = excluded.status, note = excluded.note
   where pages.status in ('failed', 'waiting')
  returning id, no, status)
select id from made where status = 'waiting' order by no
