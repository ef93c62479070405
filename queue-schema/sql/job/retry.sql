-- Replay (decision B13): history stays, the budget is full again. A waiting one is made due now, which clears a backoff.
with hit as (
  update jobs j
     set status = 'waiting', avail_at = now(), forgiven = j.attempts, item_fails = 0, timeouts_in_row = 0, doubt_endpoint_id = null,
         crashes = case when $4 then 0 else j.crashes end
   where j.id = any ($1) and j.status in ('waiting', 'parked', 'dead')
     and ($4 or j.status = 'waiting' or coalesce(j.last_class, '') not in ('crash', 'bad_input', 'oversize'))
     and not exists (select from jobs o where o.kind = j.kind and o.item_id = j.item_id and o.item_version = j.item_version
                        and o.status in ('waiting', 'running') and o.id <> j.id)
  returning j.id, j.kind, j.item_id),
noted as (insert into job_events (job_id, actor, action, reason) select id, $2, 'retry', $3 from hit)
select id, kind, item_id from hit
