select exists (
  select from lines l cross join lateral (select from jobs j where j.line_id = l.id and j.status = 'waiting' limit 1) j
   where l.capability = $1 and l.lane = 'batch' and ($2::bigint is null or l.tenant_id = $2))
