-- Take for kinds that need a provider: one group, that is one kind, lane, tenant and endpoint, at most one provider batch.
-- Claim and mark are one statement; the attempt is counted here, so a worker that dies has still tried (P14, P15).
--
-- gate: the lines whose gates are open now: tenant active, breaker on (everybody's and this tenant's), and an endpoint
--       that is on, not backing off, of a protocol this worker speaks, trusted for the level, and not another tenant's.
--       Held is derived here and nowhere written: a flip costs one row, whatever waits behind it (B21).
-- due:  the oldest of the line whose head waits longest; skip locked, so two takers never wait for each other.
--
-- `= any (array (…))`, not a join with due: the planner guesses a tenth of the line for the limit, and reads the whole table into a hash
-- join for it: 45 ms with 200,000 waiting, against 0.3.
-- Not a plain join of jobs with capabilities: with 300,000 held jobs that read 301,000 rows a claim.
with gate as materialized (
  select l.id as line_id, e.id as endpoint_id, e.epoch as endpoint_epoch, e.batch, c.epoch as capability_epoch
    from lines l
    join tenants t on t.id = l.tenant_id and t.state = 'active'
    join capabilities c on c.name = l.capability and c.tenant_id is null and c.enabled
    join lateral (
      select e.id, e.epoch, e.batch from endpoints e
       where e.capability = l.capability and e.enabled and e.due_at <= now() and e.outage_streak = 0
         and e.protocol = any ($6) and e.trust >= l.level
         and (e.owner_tenant_id is null or e.owner_tenant_id = l.tenant_id)
       order by e.rank, e.id limit 1) e on true
   where l.kind = $1 and l.lane = $2
     and not exists (select from capabilities own where own.name = l.capability and own.tenant_id = l.tenant_id and not own.enabled)),
head as materialized (
  select g.*
    from gate g
    cross join lateral (
      select j.avail_at from jobs j
       where j.line_id = g.line_id and j.status = 'waiting' and j.avail_at <= now()
       order by j.avail_at, j.id limit 1) j
   order by j.avail_at
   limit 1),
due as materialized (
  select d.id, d.avail_at
    from head h
    cross join lateral (
      select j.id, j.avail_at from jobs j
       where j.line_id = h.line_id and j.status = 'waiting' and j.avail_at <= now()
       order by j.avail_at, j.id
       limit least($3, h.batch)
       for update skip locked) d)
update jobs j
   set status = 'running', attempts = j.attempts + 1, claimed_by = $4, claimed_at = now(), started_at = null,
       avail_at = now() + make_interval(secs => $5),
       endpoint_id = head.endpoint_id, endpoint_epoch = head.endpoint_epoch, capability_epoch = head.capability_epoch
  from head, (select set_config('synchronous_commit', $7, true)) as durability
 where j.id = any (array(select id from due))
returning j.id, j.tenant_id, j.user_id, j.root_id, j.item_id, j.item_version, j.payload, j.attempts, j.charged, j.item_fails, j.crashes,
          j.timeouts_in_row, j.created_at, j.endpoint_id, j.endpoint_epoch, j.capability_epoch, (select max(avail_at) from due) as due_at
