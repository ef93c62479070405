-- One row or many, in the caller's transaction. Work that is already open for the same item and version is left alone
-- (jobs_open_work), and a running or finished one is never reset (requirement N57).
insert into jobs (line_id, tenant_id, user_id, root_id, kind, item_id, item_version, payload, avail_at, max_charged)
select $1, $2, $3, $4, $5, n.item_id, n.item_version, n.payload, now() + make_interval(secs => $6), $7
  from unnest($8::bigint[], $9::int[], $10::jsonb[]) as n(item_id, item_version, payload)
on conflict (kind, item_id, item_version) where item_id is not null and status in ('waiting', 'running') do nothing
returning id
