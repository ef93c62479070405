-- Superseded, cancelled or without content: leaves the live table under that name. Same fence as a success.
with gone as (
  delete from jobs j using unnest((select $1::bigint[]), (select $2::int[]), (select $3::text[]), (select $4::text[])) as s(id, attempt, status, class)
   where j.id = s.id and case when j.status = 'running' and j.attempts = s.attempt then true else false end
  returning j.id, j.tenant_id, j.user_id, j.root_id, j.kind, j.item_id, j.item_version, s.status, j.attempts, j.forgiven, s.class, j.created_at, j.started_at)
insert into jobs_done (id, tenant_id, user_id, root_id, kind, item_id, item_version, status, attempts, forgiven, last_class, created_at, started_at)
select id, tenant_id, user_id, root_id, kind, item_id, item_version, status, attempts, forgiven, class, created_at, started_at from gone
returning id
