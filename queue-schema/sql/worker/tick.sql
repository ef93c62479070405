-- The idle worker's one statement per poll: what could start, whose lock is free, and whether there is sweeping to do.
-- $1 my boot id, $2 my kinds, $3 the protocols I speak, $4 the grace after a lock was found free, $5 the lease.
--
-- A process that dies takes its session, and with it the lock on its boot id, along at once; its lease would last 30 s more
-- (D25). Rows are written only when something changed. A lock shows in pg_locks as the two halves of its key.
with held as materialized (
  select (l.classid::bigint << 32) | l.objid::bigint as boot_id
    from pg_locks l
   where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
     and l.database = (select oid from pg_database where datname = current_database())),
gone as (
  update workers w set lost_at = now()
   where w.stopped_at is null and w.locked and w.lost_at is null and w.boot_id <> $1
     and not exists (select from held where held.boot_id = w.boot_id)
  returning 1),
closed as ( -- long dead, nothing left to bring back
  update workers w set stopped_at = now()
   where w.stopped_at is null and w.boot_id <> $1 and coalesce(w.lost_at, w.seen_at) < now() - interval '10 minutes'
     and not exists (select from jobs j where j.status = 'running' and j.claimed_by = w.boot_id)
  returning 1),
due as (
  select distinct l.kind || ':' || l.lane as pair
    from lines l
    join tenants t on t.id = l.tenant_id and t.state = 'active'
   where l.kind = any ($2)
     and (l.capability is null or exists (
           select from endpoints e where e.capability = l.capability and e.enabled and e.due_at <= now() and e.outage_streak = 0
              and e.protocol = any ($3) and e.trust >= l.level and (e.owner_tenant_id is null or e.owner_tenant_id = l.tenant_id)
              and not exists ( -- as in claim/take.sql
                        select from endpoints r
                         where r.capability = e.capability and (r.rank, r.id) < (e.rank, e.id) and (r.enabled or r.tripped_at is not null)
                           and r.trust >= l.level and (r.owner_tenant_id is null or r.owner_tenant_id = l.tenant_id)
                           and (e.url is null and r.url is not null or e.owner_tenant_id is null and r.owner_tenant_id is not null))))
     and not exists (select from capabilities c where c.name = l.capability and not c.enabled and (c.tenant_id is null or c.tenant_id = l.tenant_id))
     and exists (select from jobs j where j.line_id = l.id and j.status = 'waiting' and j.avail_at <= now()))
select coalesce((select array_agg(pair) from due), '{}') as due,
       -- of the lost whose grace runs: seconds until the first of them may be reclaimed; null when nobody is lost (the sign is
       -- cut off in Rust: greatest() would make a zero of the null)
       (select extract(epoch from min(w.lost_at) + make_interval(secs => $4) - now())::float8
          from workers w where w.stopped_at is null and w.lost_at is not null and w.boot_id <> $1
           and exists (select from jobs j where j.status = 'running' and j.claimed_by = w.boot_id)) as lost_ripe_in,
       exists (select from gone) and (select count(*) from closed) >= 0 as newly_lost,
       pg_postmaster_start_time() < now() - make_interval(secs => $5)
         and exists (select from jobs j where j.status = 'running' and j.avail_at < now()) as leases_lapsed,
       exists (select from schedules where enabled and next_at <= now()) as schedules_due,
       exists (select from endpoints where outage_streak > 0 and due_at <= now() and enabled and protocol = any ($3)) as probe_due,
       exists (select from incidents where closed_at is null and enabled_at is not null and look_at <= now()) as landing_due,
       'notice' = any ($2) and exists (select from notices where opening = 'due' or closing = 'due') as notices_due,
       (select coalesce(array_agg(j.id), '{}') from jobs j where j.status = 'running' and j.claimed_by = $1 and j.interrupt_at is not null) as interrupted,
       -- mine that somebody asked to cancel: seen within one poll, not only at the next renewal
       (select coalesce(array_agg(j.id), '{}') from jobs j where j.status = 'running' and j.claimed_by = $1 and j.cancel_at is not null) as cancelled
