-- A job wherever it lives now: the live table or the finished one.
select j.id, j.kind, l.lane, j.tenant_id, j.user_id, j.root_id, j.item_id, j.item_version, j.status, j.attempts, j.forgiven, j.item_fails, j.crashes,
       j.avail_at, j.claimed_by, j.claimed_at, j.started_at, j.cancel_at, j.last_class, j.last_cause, j.last_error, j.created_at,
       null::timestamptz as finished_at, c.hold
  from jobs j join lines l on l.id = j.line_id
  left join lateral (select b.name as hold from capabilities b
                      where b.name = l.capability and not b.enabled and (b.tenant_id is null or b.tenant_id = j.tenant_id) and j.status = 'waiting' limit 1) c on true
 where j.id = $1
union all
select d.id, d.kind, null, d.tenant_id, d.user_id, d.root_id, d.item_id, d.item_version, d.status, d.attempts, d.forgiven, 0, 0,
       d.finished_at, null, null, d.started_at, null, d.last_class, null, null, d.created_at, d.finished_at, null
  from jobs_done d where d.id = $1
