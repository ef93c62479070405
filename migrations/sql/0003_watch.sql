-- What can be seen of the house: numbers for whoever watches it, and for the operator what came of a probe.

-- A fourth role. The API tells the house's numbers without a token, and its login may not become the worker: this one reads of every tenant
-- what can be counted, in the columns that counting needs, and neither a payload nor a person.
do $$
begin
  begin
    if not exists (select from pg_roles where rolname = 'steadfast_watch') then create role steadfast_watch nologin; end if;
  exception when duplicate_object or unique_violation then null; -- another database of this cluster was first
  end;
  if not pg_has_role(current_user, 'steadfast_watch', 'member') then execute format('grant steadfast_watch to %I', current_user); end if;
end $$;
grant usage on schema public to steadfast_watch;
grant select on capabilities, endpoints, lines, workers to steadfast_watch;
grant select (line_id, kind, status, avail_at, created_at) on jobs to steadfast_watch;
grant select (opening, closing) on notices to steadfast_watch;
create policy counted on jobs for select to steadfast_watch using (true);

-- What an endpoint that is down said to its last control text, for the operator who asked for it (`steadfast endpoint probe`). Null: nothing yet
-- since it was last asked. Sanitised, never content.
alter table endpoints add column probe_error text constraint a_bounded_probe_error check (length(probe_error) <= 500);
