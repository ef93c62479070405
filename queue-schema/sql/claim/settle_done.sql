-- A success leaves the live table and writes its finished row, alone (D19). Fenced by (job, attempt): no row means the
-- claim was lost, and Lost writes nothing.
with gone as (
  delete from jobs j using unnest($1::bigint[], $2::int[]) as s(id, attempt)
   where j.id = s.id and case when j.status = 'running' and j.attempts = s.attempt then true else false end
  returning j.id, j.tenant_id, j.user_id, j.root_id, j.kind, j.item_id, j.item_version, j.attempts, j.forgiven, j.last_class, j.created_at, j.started_at)
insert into jobs_done (id, tenant_id, user_id, root_id, kind, item_id, item_version, status, attempts, forgiven, last_class, created_at, started_at)
select id, tenant_id, user_id, root_id, kind, item_id, item_version, 'done', attempts, forgiven, last_class, created_at, started_at from gone
returning id
