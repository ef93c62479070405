-- Everybody with work behind the closed breaker who has no notice that is open; $2 at a time, so that no statement holds on for long.
-- Whose closing part was due or out already has work held again: a new round, as in of_held.sql, without a second apology.
-- From a breaker that is on again nobody is told that it is off: what is missed here by a hair gets its closing part alone.
insert into notices (incident_id, tenant_id, user_id, wording_version, opening)
select i.id, u.tenant_id, u.id, $3, case when i.enabled_at is null then 'due' else 'skipped' end
  from incidents i
  join users u on (i.tenant_id is null or u.tenant_id = i.tenant_id)
 where i.id = $1 and i.closed_at is null
   and not exists (select from notices n where n.incident_id = i.id and n.user_id = u.id and n.closing is null)
   and exists (select from jobs j join lines l on l.id = j.line_id
                where j.user_id = u.id and j.status in ('waiting', 'running') and l.capability = i.capability and l.lane = 'batch'
                  and j.id <= coalesce(i.last_job_id, j.id))
 limit $2
on conflict (incident_id, user_id) do update
   set closing = null, closing_wording = null, closing_at = null, round = notices.round + 1
 where notices.closing is not null
