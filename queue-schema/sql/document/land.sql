-- Landed: no page waits any more. Text somewhere makes it processed, pages that all failed make it failed, else it was empty.
update documents d
   set status = s.status, page_count = s.pages,
       processed_at = case when s.status in ('processed', 'empty', 'failed') then now() end,
       error = case when s.failed > 0 then format('%s of %s pages could not be read', s.failed, s.pages) end
  from (select count(*) as pages, count(*) filter (where p.status = 'failed') as failed,
               case when bool_or(p.status = 'waiting') then 'processing'
                    when exists (select from blocks b where b.document_id = $1) then 'processed'
                    when bool_or(p.status = 'failed') then 'failed'
                    else 'empty' end as status
          from pages p where p.document_id = $1) s
 where d.id = $1
