-- What of this caller's material is not in the index, and why: only items in Spaces that he may read (B46).
-- Held is derived. From each line at most 10,000: past that the number means "very many", not a sum worth its scan.
with item as materialized (
  select j.kind, j.status, j.item_id, j.created_at,
         exists (select from capabilities c where c.name = l.capability and not c.enabled and (c.tenant_id is null or c.tenant_id = $1)) as held
    from lines l
    cross join lateral (
      select j.kind, j.status, j.item_id, j.created_at from jobs j
       where j.line_id = l.id and j.status = 'waiting' and j.tenant_id = $1
       order by j.avail_at, j.id limit 10000) j
   where l.tenant_id = $1 and l.kind in ('extract', 'ocr', 'embed')
  union all
  select kind, status, item_id, created_at, false from jobs
   where status = 'running' and tenant_id = $1 and kind in ('extract', 'ocr', 'embed')
  union all
  select kind, status, item_id, created_at, false from jobs
   where status in ('parked', 'dead') and tenant_id = $1 and kind in ('extract', 'ocr', 'embed'))
select case when i.status in ('parked', 'dead') then i.status
            when i.held then 'held'
            when i.created_at < now() - make_interval(secs => $4) then 'behind'
            else 'fresh' end as code,
       count(*) as count, extract(epoch from now() - min(i.created_at))::float8 as oldest_seconds
  from item i
  left join documents d on i.kind = 'extract' and d.id = i.item_id
  left join pages p on i.kind = 'ocr' and p.id = i.item_id
  left join documents pd on pd.id = p.document_id
  left join blocks b on i.kind = 'embed' and b.id = i.item_id
  join space_members m on m.space_id = coalesce(d.space_id, pd.space_id, b.space_id) and m.user_id = $2 and m.tenant_id = $1
 where $3::bigint[] is null or m.space_id = any ($3)
 group by 1 order by 1
