-- Dead leases come back by themselves. $1 lease, $2 grace after a worker's lock was found free, $3 crashes that kill, $4 limit.
--
-- Which: the lease has run out by the database's clock, or the worker's session lock is free and it did not return
-- within the grace (D25). Nothing within one lease of the server's start, when every lock is free and every renewal late (D5).
-- Whose fault: a claim that never started is nobody's (B8); a started one whose worker still beats is nobody's (D5: it was
-- cut off, the fence protects the rest); otherwise it counts as a crash and stays charged: a worker that died has still tried.
-- Then: dead when the crashes or the budget are spent, never stuck as running (B9); else waiting, due now.
with stale as materialized (
  select j.id, j.tenant_id, j.kind, j.item_id, j.attempts, j.claimed_by, j.claimed_at, j.started_at, j.cancel_at,
         (j.started_at is null or (w.seen_at > now() - make_interval(secs => $1) and w.lost_at is null and w.stopped_at is null)) as blameless
    from jobs j left join workers w on w.boot_id = j.claimed_by
   where j.status = 'running'
     and (j.avail_at < now() or w.lost_at < now() - make_interval(secs => $2))
     and pg_postmaster_start_time() < now() - make_interval(secs => $1)
   order by j.avail_at
   limit $4
   for update of j skip locked),
back as (
  update jobs j
     set status = case when not s.blameless and j.crashes + 1 >= $3 then 'dead'
                       when not s.blameless and j.charged >= j.max_charged then 'dead'
                       else 'waiting' end,
         avail_at = now(),
         forgiven = j.forgiven + s.blameless::int, crashes = j.crashes + (not s.blameless)::int,
         claimed_by = null, claimed_at = null, started_at = null, endpoint_id = null, endpoint_epoch = null, capability_epoch = null, interrupt_at = null,
         last_class = case when s.blameless then j.last_class else 'crash' end,
         last_cause = case when s.blameless then j.last_cause else 'worker_lost' end,
         last_error = case when s.blameless then j.last_error else 'the worker that ran it was lost' end
    from stale s
   where j.id = s.id
  returning j.id, j.tenant_id, j.kind, j.item_id, j.status, s.attempts as attempt, s.blameless, s.claimed_by, s.claimed_at, s.started_at, s.cancel_at),
noted as (
  insert into attempts (job_id, attempt, tenant_id, class, cause, error, forgiven, worker, claimed_at, started_at)
  select id, attempt, tenant_id, case when blameless then 'preempted' else 'crash' end, case when blameless then 'lease_lapsed' else 'worker_lost' end,
         'the lease ended without a settlement', blameless, claimed_by, claimed_at, started_at from back
  on conflict do nothing)
select id, kind, item_id, status, cancel_at is not null as cancelled, case when blameless then 'preempted' else 'crash' end as class,
       'worker_lost' as cause, null::text as error from back
