select d.id, d.kind, null::text as lane, d.tenant_id, d.user_id, d.root_id, d.item_id, d.item_version, d.status, d.attempts, d.forgiven, 0 as item_fails, 0 as crashes,
       d.finished_at as avail_at, null::bigint as claimed_by, null::timestamptz as claimed_at, d.started_at, null::timestamptz as cancel_at,
       d.last_class, null::text as last_cause, null::text as last_error, d.created_at, d.finished_at, null::text as hold
  from jobs_done d
 where ($1::text is null or d.kind = $1) and ($2::bigint is null or d.id < $2) and ($3::bigint is null or d.user_id = $3)
 order by d.id desc limit $4
