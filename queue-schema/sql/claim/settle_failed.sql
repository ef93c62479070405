-- Every failure that keeps its row: back to waiting, parked, or dead; dead also when the budget is spent. One attempt row
-- each. Same fence as a success. `o` is the row as it was, for the times that the update clears.
with s as (
  select * from unnest((select $1::bigint[]), (select $2::int[]), (select $3::text[]), (select $4::float8[]), (select $5::boolean[]), (select $6::int[]),
                       (select $7::int[]), (select $8::int[]), (select $9::text[]), (select $10::text[]), (select $11::text[]), (select $12::bigint[]))
    as s(id, attempt, status, delay, forgive, item_fails, crashes, timeouts_in_row, class, cause, error, doubt)),
hit as (
  update jobs j
     set status = case when s.status = 'waiting' and j.attempts - j.forgiven - s.forgive::int >= j.max_charged then 'dead' else s.status end,
         avail_at = now() + make_interval(secs => s.delay),
         forgiven = j.forgiven + s.forgive::int, item_fails = s.item_fails, crashes = s.crashes, timeouts_in_row = s.timeouts_in_row,
         claimed_by = null, claimed_at = null, started_at = null, endpoint_id = null, endpoint_epoch = null, capability_epoch = null,
         interrupt_at = null, doubt_endpoint_id = s.doubt,
         last_class = s.class, last_cause = s.cause, last_error = s.error
    from s join jobs o on o.id = s.id
   where j.id = s.id and case when j.status = 'running' and j.attempts = s.attempt and (j.cancel_at is null or not $13) then true else false end
  returning j.id, j.tenant_id, j.kind, j.item_id, j.status, j.cancel_at, s.attempt, s.class, s.cause, s.error, s.forgive, o.claimed_by, o.claimed_at, o.started_at),
noted as (
  insert into attempts (job_id, attempt, tenant_id, class, cause, error, forgiven, worker, claimed_at, started_at)
  select id, attempt, tenant_id, class, cause, error, forgive, claimed_by, claimed_at, started_at from hit
  on conflict do nothing)
select id, kind, item_id, status, cancel_at is not null as cancelled, class, cause, error from hit
