-- May a question be asked now? The first thing that stands in its way, or null. Looking costs less than waiting in vain.
select case
  when exists (select from capabilities c where c.name = 'embedding' and not c.enabled and (c.tenant_id is null or c.tenant_id = $1)) then 'stopped'
  when not exists (select from workers w where w.stopped_at is null and w.lost_at is null and 'question' = any (w.kinds)
                                           and w.seen_at > now() - make_interval(secs => $2)) then 'no_worker'
  else (select case when count(*) = 0 then 'no_endpoint'
                    when bool_or(e.outage_streak = 0 and e.due_at <= now() + make_interval(secs => $3)) then null
                    when bool_and(e.outage_streak > 0) then 'outage'
                    else 'rate_limited' end
          from endpoints e
         where e.capability = 'embedding' and e.enabled and e.trust >= 1 and (e.owner_tenant_id is null or e.owner_tenant_id = $1)
           and not exists ( -- as in claim/take.sql
                     select from endpoints r
                      where r.capability = e.capability and (r.rank, r.id) < (e.rank, e.id) and (r.enabled or r.tripped_at is not null)
                        and r.trust >= 1 and (r.owner_tenant_id is null or r.owner_tenant_id = $1)
                        and (e.url is null and r.url is not null or e.owner_tenant_id is null and r.owner_tenant_id is not null)))
  end as obstacle
