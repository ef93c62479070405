-- Just before the first side effect: is the attempt still ours, and is the gate still open? Both in one look, so that a
-- breaker flipped since the take, the capability's or the endpoint's own, stops the call (B15, B20). A claim whose gate closed is not
-- marked as started.
with gate as (
  select coalesce(bool_and(enabled), true) and coalesce((select enabled from endpoints where id = $5), false) as open
    from capabilities where name = $3 and (tenant_id is null or tenant_id = $4))
update jobs j
   set started_at = case when gate.open then now() end
  from unnest((select $1::bigint[]), (select $2::int[])) as c(id, attempt), gate, (select set_config('synchronous_commit', 'off', true)) as durability
 where j.id = c.id and case when j.status = 'running' and j.attempts = c.attempt then true else false end
returning j.id, gate.open
