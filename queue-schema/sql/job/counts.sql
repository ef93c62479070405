-- The gauges of decision B52, by kind. Held is derived: waiting behind a closed breaker.
select l.kind,
       count(*) filter (where j.status = 'waiting' and not h.held and j.avail_at <= now()) as due,
       count(*) filter (where j.status = 'waiting' and not h.held and j.avail_at > now()) as backing_off,
       count(*) filter (where j.status = 'waiting' and h.held) as held,
       count(*) filter (where j.status = 'running') as running,
       count(*) filter (where j.status = 'parked') as parked,
       count(*) filter (where j.status = 'dead') as dead,
       extract(epoch from now() - min(j.created_at) filter (where j.status = 'waiting'))::float8 as oldest_seconds
  from lines l left join jobs j on j.line_id = l.id -- a kind that was ever asked for shows its zeros
  cross join lateral (select exists (select from capabilities c where c.name = l.capability and not c.enabled
                                        and (c.tenant_id is null or c.tenant_id = l.tenant_id)) as held) h
 group by l.kind order by l.kind
