-- What a person asked for, with the state of all that followed from it: extract opens pages for ocr, and a request is
-- completed when none of them is open. Embedding does not count: a document has landed when its words can be found (B26).
-- $3: one job, first or following; null: first jobs only, newest first, below $6. $4: in the words of the answer.
with mine as (
  (select j.id, j.kind, j.status, j.attempts, j.item_id, j.last_class, j.last_error, l.capability, j.created_at, j.started_at, null::timestamptz as finished_at
     from jobs j join lines l on l.id = j.line_id
    where j.tenant_id = $1 and j.user_id = $2 and j.kind not in ('question', 'noop') and ($5::text is null or j.kind = $5)
      and ($3::bigint is null or j.id = $3) and ($3::bigint is not null or j.root_id is null) and ($6::bigint is null or j.id < $6)
    order by j.id desc limit case when $4::text[] is null then $7::bigint end)
  union all
  (select d.id, d.kind, d.status, d.attempts, d.item_id, d.last_class, null, null, d.created_at, d.started_at, d.finished_at
     from jobs_done d
    where d.tenant_id = $1 and d.user_id = $2 and d.kind not in ('question', 'noop') and ($5::text is null or d.kind = $5)
      and ($3::bigint is null or d.id = $3) and ($3::bigint is not null or d.root_id is null) and ($6::bigint is null or d.id < $6)
    order by d.id desc limit case when $4::text[] is null then $7::bigint end)),
told as (
  select r.id, r.kind, r.attempts, r.created_at, r.started_at, r.finished_at, f.done_at,
         case r.kind when 'extract' then r.item_id
                     when 'ocr' then (select p.document_id from pages p where p.id = r.item_id)
                     when 'embed' then (select b.document_id from blocks b where b.id = r.item_id) end as document_id,
         case when r.status = 'waiting' then 'queued'
              when r.status = 'running' then 'running'
              when r.status = 'dead' then 'dead'
              when r.status in ('parked', 'cancelled', 'superseded') then 'failed'
              when c.open_count > 0 and c.running_count = 0 and h.name is not null then 'queued'
              when c.open_count > 0 then 'running'
              when c.dead_count > 0 then 'dead'
              when c.parked_count > 0 then 'failed'
              else 'completed' end as status,
         case when r.status = 'done' then c.class else r.last_class end as class,
         case when r.status = 'done' then c.detail when r.last_class = 'bad_input' then r.last_error end as detail,
         h.name as hold, h.changed_at as hold_since,
         (r.status = 'done')::int + f.done_count as done_count, 1 + f.done_count + c.open_count + c.dead_count + c.parked_count as part_count
    from mine r
    cross join lateral (
      select count(*) filter (where j.status in ('waiting', 'running')) as open_count, count(*) filter (where j.status = 'running') as running_count,
             count(*) filter (where j.status = 'dead') as dead_count, count(*) filter (where j.status = 'parked') as parked_count,
             min(j.last_class) filter (where j.status in ('dead', 'parked')) as class,
             min(j.last_error) filter (where j.status = 'dead' and j.last_class = 'bad_input') as detail
        from jobs j where j.root_id = r.id and j.kind <> 'embed' and j.tenant_id = $1) c
    cross join lateral (
      select count(*) as done_count, max(d.finished_at) as done_at
        from jobs_done d where d.root_id = r.id and d.kind <> 'embed' and d.tenant_id = $1) f
    left join lateral (
      select b.name, b.changed_at
        from capabilities b
       where not b.enabled and (b.tenant_id is null or b.tenant_id = $1)
         and (r.status = 'waiting' and b.name = r.capability
              or exists (select from jobs j join lines l on l.id = j.line_id
                          where j.root_id = r.id and j.status = 'waiting' and l.capability = b.name and j.kind <> 'embed' and j.tenant_id = $1))
       order by b.changed_at limit 1) h on true)
select id, kind, status, attempts, document_id, class, detail, hold, hold_since, done_count, part_count, created_at, started_at,
       case when status in ('completed', 'failed', 'dead') then greatest(finished_at, done_at) end as finished_at
  from told
 where $4::text[] is null or status = any ($4)
 order by id desc
 limit $7::bigint
