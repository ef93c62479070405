select j.id, j.root_id, j.kind, j.status, j.attempts, j.last_class as class, j.created_at,
       coalesce((select max(a.ended_at) from attempts a where a.job_id = j.id), j.created_at) as ended_at,
       case j.kind when 'extract' then j.item_id
                   when 'ocr' then (select p.document_id from pages p where p.id = j.item_id)
                   when 'embed' then (select b.document_id from blocks b where b.id = j.item_id) end as document_id
  from jobs j
 where j.status in ('parked', 'dead') and j.tenant_id = $1 and j.user_id = $2
   and ($3::text is null or j.kind = $3) and ($4::bigint is null or j.id < $4)
 order by j.id desc
 limit $5
