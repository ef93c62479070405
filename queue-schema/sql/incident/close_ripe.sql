-- On for long enough, and nothing that was held under it is open any more.
update incidents i set closed_at = now(), closed_by = 'system'
 where i.id = $1 and i.closed_at is null and i.enabled_at is not null
   and not exists (select from notices n where n.incident_id = i.id and n.closing is null)
   and not exists (select from jobs j join lines l on l.id = j.line_id
                    where j.id <= $4 and j.status in ('waiting', 'running') and l.capability = $2 and l.lane = 'batch'
                      and ($3::bigint is null or l.tenant_id = $3))
