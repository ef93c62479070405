-- A job that somebody cancelled while it ran and that came back to waiting: it ends here.
with gone as (
  delete from jobs where id = any ($1) and status <> 'running' and cancel_at is not null
  returning id, tenant_id, user_id, root_id, kind, item_id, item_version, attempts, forgiven, created_at, started_at)
insert into jobs_done (id, tenant_id, user_id, root_id, kind, item_id, item_version, status, attempts, forgiven, last_class, created_at, started_at)
select id, tenant_id, user_id, root_id, kind, item_id, item_version, 'cancelled', attempts, forgiven, 'cancelled', created_at, started_at from gone
returning id
