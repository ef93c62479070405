-- What followed from a request's first job, wherever it lives now.
select j.id, j.kind, j.status, j.last_class as class, j.attempts, j.created_at, null::timestamptz as finished_at, c.hold
  from jobs j join lines l on l.id = j.line_id
  left join lateral (select b.name as hold from capabilities b
                      where b.name = l.capability and not b.enabled and (b.tenant_id is null or b.tenant_id = j.tenant_id) and j.status = 'waiting' limit 1) c on true
 where j.root_id = $1
union all
select d.id, d.kind, d.status, d.last_class, d.attempts, d.created_at, d.finished_at, null from jobs_done d where d.root_id = $1
 order by id limit $2
