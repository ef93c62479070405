-- Gives the documents behind these jobs a place again: a Space of their own tenant that their owner is a member of ($2: its id or
-- name). Only documents that lack one: no Space, or work of theirs that was parked for want of it. Returns every job of theirs that waits for
-- it, with what its line must be now.
with about as (
  select distinct d.id, d.tenant_id, d.user_id, d.level, d.space_id is null as loose
    from jobs j
    left join pages p on j.kind = 'ocr' and p.id = j.item_id
    join documents d on d.id = case j.kind when 'extract' then j.item_id when 'ocr' then p.document_id end
   where j.id = any ($1) and (j.status = 'parked' and j.last_class = 'place_gone' or j.status = 'waiting' and d.space_id is null)),
place as (
  select distinct on (a.id) a.id as document_id, a.loose, s.id as space_id, greatest(coalesce(a.level, 3), s.floor_level)::smallint as level
    from about a
    join spaces s on s.tenant_id = a.tenant_id and (s.id::text = $2 or lower(s.name) = lower($2))
    join space_members m on m.space_id = s.id and m.user_id = a.user_id
   order by a.id, s.id::text = $2 desc, s.id),
moved as (update documents d set space_id = p.space_id from place p where d.id = p.document_id),
pieces as (update blocks b set space_id = p.space_id from place p where b.document_id = p.document_id)
select j.id, j.kind, j.tenant_id, p.level, p.document_id, p.space_id
  from place p
  join jobs j on (j.status = 'parked' and j.last_class = 'place_gone' or j.status = 'waiting' and p.loose)
   and (j.kind = 'extract' and j.item_id = p.document_id
        or j.kind = 'ocr' and j.item_id in (select g.id from pages g where g.document_id = p.document_id))
 order by j.id
