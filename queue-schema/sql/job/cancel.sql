-- A waiting, parked or dead job leaves at once; a running one is asked to stop at its holder's next renewal, and
-- is reported as asked, not as cancelled: the state told is the state that is.
with asked as (
  update jobs set cancel_at = now() where id = any ($1) and status = 'running' returning id),
gone as (
  delete from jobs where id = any ($1) and status <> 'running'
  returning id, tenant_id, user_id, root_id, kind, item_id, item_version, attempts, forgiven, last_class, created_at, started_at),
kept as (
  insert into jobs_done (id, tenant_id, user_id, root_id, kind, item_id, item_version, status, attempts, forgiven, last_class, created_at, started_at)
  select id, tenant_id, user_id, root_id, kind, item_id, item_version, 'cancelled', attempts, forgiven, 'cancelled', created_at, started_at from gone
  returning id),
muted as ( -- a mail that somebody cancelled is not made due again
  update notices n set opening = case when n.opening = 'due' and n.closing is null then 'skipped' else n.opening end,
         closing = case when n.closing = 'due' then 'none' else n.closing end
    from gone g where g.kind = 'notice' and g.item_id = n.id),
noted as (insert into job_events (job_id, actor, action, reason)
          select id, $2, 'cancel', $3 from (select id from asked union all select id from kept) x)
select id, true as running from asked union all select id, false from kept
