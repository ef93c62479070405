-- Parts that are due and have no job yet: version 1 is the opening part, 1 + round the closing part of that round.
select n.id, n.tenant_id, v.version
  from notices n
  cross join lateral (select case when n.closing = 'due' then 1 + n.round else 1 end as version) v
 where (n.opening = 'due' or n.closing = 'due')
   and not exists (select from jobs j where j.kind = 'notice' and j.item_id = n.id and j.item_version = v.version and j.status in ('waiting', 'running'))
 order by n.id limit 500
 for update of n skip locked
