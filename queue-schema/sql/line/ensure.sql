-- The line for this gate, made when first needed. `do nothing` returns no row when somebody else just made it, and the
-- plain select then reads a snapshot from before that: the caller asks again.
with made as (
  insert into lines (kind, lane, tenant_id, level, capability)
  select $1, $2, $3, $4, $5
   where not exists (select from lines where kind = $1 and lane = $2 and tenant_id = $3 and level = $4)
  on conflict do nothing
  returning id)
select id from made
union all
select id from lines where kind = $1 and lane = $2 and tenant_id = $3 and level = $4
limit 1
