-- Take for kinds that need a provider: one group, that is one kind, lane, tenant and endpoint, at most one provider batch.
-- Claim and mark are one statement; the attempt is counted here, so a worker that dies has still tried (P14, P15).
--
-- gate: the lines whose gates are open now: tenant active, breaker on (everybody's and this tenant's), and an endpoint
--       that is on, not backing off, of a protocol this worker speaks, trusted for the level, and not another tenant's.
--       Held is derived here and nowhere written: a flip costs one row, whatever waits behind it (B21).
--       An engine inside the worker never stands in for a remote endpoint that was to serve before it: one that was refused or is away
--       is waited for (other vectors, other eyes: nobody asked for those). Its own breaker is the operator's way to say otherwise. Nor does
--       everybody's endpoint stand in for a tenant's own: what was meant for that one is not sent to another provider because it is away.
-- $8:   the breaker was turned on a moment ago and few may ask at once (B22): those lines are taken with the breaker's row locked,
--       round the tenants, and only while fewer groups are in flight than the ramp allows; those of before it was turned on do not
--       count, or one call that hangs would hold up everybody. Without it, only the other lines.
-- due:  the oldest of the line whose head waits longest; skip locked, so two takers never wait for each other.
--
-- `= any (array (…))`, not a join with due: the planner guesses a tenth of the line for the limit, and reads the whole table into a hash
-- join for it: 45 ms with 200,000 waiting, against 0.3.
-- Not a plain join of jobs with capabilities: with 300,000 held jobs that read 301,000 rows a claim.
with flying as materialized (
  select distinct j.claimed_by, j.claimed_at, j.tenant_id, j.capability_epoch
    from jobs j join lines l on l.id = j.line_id and l.lane = 'batch' and l.capability = (select max(capability) from lines where kind = $1)
   where j.status = 'running' and $8),
gate as materialized (
  select l.id as line_id, l.ramped_at, e.id as endpoint_id, e.epoch as endpoint_epoch, e.batch,
         case when e.owner_tenant_id is null then c.epoch else coalesce(own.epoch, 1) end as capability_epoch
    from lines l
    join tenants t on t.id = l.tenant_id and t.state = 'active'
    join capabilities c on c.name = l.capability and c.tenant_id is null and c.enabled
    left join capabilities own on own.name = l.capability and own.tenant_id = l.tenant_id
    join lateral (
      select e.id, e.epoch, e.batch, e.owner_tenant_id from endpoints e
       where e.capability = l.capability and e.enabled and e.due_at <= now() and e.outage_streak = 0
         and e.protocol = any ($6) and e.trust >= l.level
         and (e.owner_tenant_id is null or e.owner_tenant_id = l.tenant_id)
         and not exists (
                   select from endpoints r
                    where r.capability = e.capability and (r.rank, r.id) < (e.rank, e.id) and (r.enabled or r.tripped_at is not null)
                      and r.trust >= l.level and (r.owner_tenant_id is null or r.owner_tenant_id = l.tenant_id)
                      and (e.url is null and r.url is not null or e.owner_tenant_id is null and r.owner_tenant_id is not null))
       order by e.rank, e.id limit 1) e on true
   where l.kind = $1 and l.lane = $2
     and own.enabled is not false
     and case when $8 then (c.ramp_limit is not null or own.ramp_limit is not null)
                           and (c.ramp_limit is null or c.ramp_limit > (select count(*) from flying f where f.capability_epoch = c.epoch))
                           and (own.ramp_limit is null or own.ramp_limit > (select count(*) from flying f where f.tenant_id = l.tenant_id and f.capability_epoch = own.epoch))
              else $2 <> 'batch' or (c.ramp_limit is null and own.ramp_limit is null) end),
head as materialized (
  select g.*
    from gate g
    cross join lateral (
      select j.avail_at from jobs j
       where j.line_id = g.line_id and j.status = 'waiting' and j.avail_at <= now()
       order by j.avail_at, j.id limit 1) j
   order by case when $8 then g.ramped_at end, j.avail_at
   limit 1),
turn as (update lines l set ramped_at = clock_timestamp() from head where l.id = head.line_id and $8),
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
returning j.id, j.tenant_id, j.user_id, j.root_id, j.item_id, j.item_version, j.payload, j.attempts, j.charged, j.max_charged, j.item_fails, j.crashes,
          j.timeouts_in_row, j.last_class, j.created_at, j.claimed_at, $8 as ramped, j.endpoint_id, j.endpoint_epoch, j.capability_epoch, (select max(avail_at) from due) as due_at
