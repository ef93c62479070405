-- What of this person's did not come through, by document: for the needs-attention wording. $5 at most.
select distinct on (d.id) d.title, j.id as job_id, j.last_class as class
  from jobs j
  join lines l on l.id = j.line_id and l.capability = $2
  left join pages p on j.kind = 'ocr' and p.id = j.item_id
  left join blocks b on j.kind = 'embed' and b.id = j.item_id
  join documents d on d.id = coalesce(p.document_id, b.document_id)
 where j.user_id = $1 and j.status in ('parked', 'dead') and j.id <= $3 and j.avail_at >= $4
 order by d.id, j.id limit $5
