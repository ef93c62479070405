-- Live jobs first seen by an operator's eye: newest first, filtered by what was asked for, after a cursor.
select j.id, j.kind, l.lane, j.tenant_id, j.user_id, j.root_id, j.item_id, j.item_version, j.status, j.attempts, j.forgiven, j.item_fails, j.crashes,
       j.avail_at, j.claimed_by, j.claimed_at, j.started_at, j.cancel_at, j.last_class, j.last_cause, j.last_error, j.created_at,
       null::timestamptz as finished_at, c.hold
  from jobs j join lines l on l.id = j.line_id
  left join lateral (select b.name as hold from capabilities b
                      where b.name = l.capability and not b.enabled and (b.tenant_id is null or b.tenant_id = j.tenant_id) and j.status = 'waiting' limit 1) c on true
 where ($1::text is null or j.status = $1) and ($2::text is null or j.kind = $2)
   and ($3::bigint is null or j.id < $3) and ($4::boolean is null or (c.hold is not null) = $4)
   and ($5::bigint is null or j.user_id = $5)
 order by j.id desc limit $6
