-- Jobs about a document that goes: those nobody holds leave with it, a running one is asked to stop at its next renewal.
with item as (
  select 'extract' as kind, $2::bigint as id
  union all select 'ocr', p.id from pages p where p.document_id = $2 and p.tenant_id = $1
  union all select 'embed', b.id from blocks b where b.document_id = $2 and b.tenant_id = $1),
about as materialized (
  -- Apart by status, because an index stands behind each half.
  select j.id, j.status from item i join jobs j on j.kind = i.kind and j.item_id = i.id and j.status in ('waiting', 'running') where j.tenant_id = $1
  union all
  select j.id, j.status from jobs j join item i on j.kind = i.kind and j.item_id = i.id where j.status in ('parked', 'dead') and j.tenant_id = $1),
asked as (update jobs j set cancel_at = now() from about a where j.id = a.id and j.status = 'running')
delete from jobs j using about a where j.id = a.id and j.status <> 'running'
