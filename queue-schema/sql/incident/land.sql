-- Whose held work has all ended, and how: one closing part for each, landed or in need of attention, or none where nothing is
-- left to tell of. An opening part that never went out is not sent after the event.
-- $1 incident, $2 capability, $3 tenant or null, $4 the newest job that was held, $5 when the incident opened.
with mine as (
  select n.id, n.user_id from notices n
   where n.incident_id = $1 and n.closing is null
     and not exists (
       select from jobs j join lines l on l.id = j.line_id
        where j.user_id = n.user_id and j.status in ('waiting', 'running') and j.id <= $4
          and l.capability = $2 and l.lane = 'batch' and ($3::bigint is null or l.tenant_id = $3))
   limit 1000),
ended as (
  select m.id,
         exists (select from jobs j join lines l on l.id = j.line_id
                  where j.user_id = m.user_id and j.status in ('parked', 'dead') and j.id <= $4 and j.avail_at >= $5
                    and l.capability = $2 and ($3::bigint is null or l.tenant_id = $3))
         or exists (select from jobs_done d join lines l on l.kind = d.kind and l.tenant_id = d.tenant_id and l.capability = $2
                     join job_events v on v.job_id = d.id and v.action = 'cancel' and v.actor not like 'user %'
                     where d.user_id = m.user_id and d.status = 'cancelled' and d.id <= $4 and d.finished_at >= $5) as bad,
         exists (select from jobs_done d where d.user_id = m.user_id and d.status = 'done' and d.id <= $4 and d.finished_at >= $5
                    and d.kind in (select kind from lines where capability = $2 and lane = 'batch')) as good
    from mine m)
update notices n
   set closing = case when e.bad or e.good then 'due' else 'none' end,
       closing_wording = case when e.bad then 'needs_attention' when e.good then 'landed' end,
       opening = case when n.opening = 'due' then 'skipped' else n.opening end
  from ended e
 where n.id = e.id
