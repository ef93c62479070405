-- The most impatient job. Its transaction is not worth an fsync, and a line that is not there yet makes it wait for `ensure`.
insert into jobs (line_id, tenant_id, user_id, kind, payload, max_charged)
select l.id, $1, $2, 'question', jsonb_build_object('text', $3::text), 3
  from lines l, (select set_config('synchronous_commit', 'off', true)) as durability
 where l.kind = 'question' and l.lane = 'interactive' and l.tenant_id = $1 and l.level = $4
returning id
