-- The whole house in one step: who may connect, on whose behalf, what is stored, what is to be done, and who does it.
-- Tables plural, columns singular; …_at happened, …_until is to come, …_count is a number. Times are the database's.

-- ── Roles ────────────────────────────────────────────────────────────────────────────────────────────────────────
-- Three, from the first day (decisions D17): the owner runs this file; the worker sees every tenant because it works
-- for all of them; the API is bound by row-level security, so a predicate that somebody forgot shows nothing.
do $$
declare r text;
begin
  foreach r in array array['steadfast_worker', 'steadfast_api'] loop
    begin
      if not exists (select from pg_roles where rolname = r) then execute format('create role %I nologin', r); end if;
    exception when duplicate_object or unique_violation then null; -- another database of this cluster was first
    end;
    if not pg_has_role(current_user, r, 'member') then execute format('grant %I to %I', r, current_user); end if;
  end loop;
end $$;

-- pgvector where the server has it and lets us; without it the sign bits below carry the search.
do $$ begin
  if exists (select from pg_available_extensions where name = 'vector') then create extension if not exists vector; end if;
exception when insufficient_privilege then raise notice 'pgvector is there but this role may not create it: sign bits will do';
end $$;

-- ── On whose behalf ──────────────────────────────────────────────────────────────────────────────────────────────
create table settings (
  key        text primary key,
  value      jsonb not null,
  changed_by text not null default current_user,
  changed_at timestamptz not null default now()
);
insert into settings (key, value) values ('tenancy', '"single"');

create table tenants (
  id         bigint generated always as identity primary key,
  name       text not null unique,
  state      text not null default 'active' constraint a_known_tenant_state check (state in ('active', 'suspended', 'offboarding')),
  created_at timestamptz not null default now()
);
insert into tenants (name) values ('default');

create table users (
  id         bigint generated always as identity primary key,
  tenant_id  bigint not null references tenants on delete cascade,
  name       text not null,
  email      text,
  created_at timestamptz not null default now(),
  constraint one_name_per_tenant unique (tenant_id, name)
);

create table spaces (
  id          bigint generated always as identity primary key,
  tenant_id   bigint not null references tenants on delete cascade,
  name        text not null,
  floor_level smallint not null default 0 constraint a_known_floor check (floor_level between 0 and 3),
  created_at  timestamptz not null default now(),
  constraint one_space_name_per_tenant unique (tenant_id, name)
);

create table space_members (
  tenant_id bigint not null references tenants on delete cascade,
  space_id  bigint not null references spaces on delete cascade,
  user_id   bigint not null references users on delete cascade,
  primary key (space_id, user_id)
);
create index members_by_user on space_members (user_id);

create table tokens (
  id           bigint generated always as identity primary key,
  tenant_id    bigint not null references tenants on delete cascade,
  user_id      bigint not null references users on delete cascade,
  name         text not null,
  hash         bytea not null unique,   -- SHA-256 of the token; 256 random bits need no salt and no slow hash
  created_at   timestamptz not null default now(),
  last_used_at timestamptz,
  expires_at   timestamptz,
  revoked_at   timestamptz
);

-- ── What is stored ───────────────────────────────────────────────────────────────────────────────────────────────
-- level: how sensitive, 0 open … 3 credentials. An endpoint's trust must reach it. Null counts as 3 (fail closed).
create table documents (
  id           bigint generated always as identity primary key,
  tenant_id    bigint not null references tenants on delete cascade,
  user_id      bigint not null references users on delete cascade,
  space_id     bigint not null references spaces on delete cascade,
  conversation text,
  title        text not null,
  media_type   text not null,
  byte_count   bigint not null,
  sha256       bytea not null,
  blob_key     text not null,
  version      integer not null default 1,
  level        smallint default 1,      -- what a request that says nothing gets
  metadata     jsonb not null default '{}',
  status       text not null default 'pending'
               constraint a_known_document_status check (status in ('pending', 'processing', 'processed', 'empty', 'failed')),
  page_count   integer,
  error        text,                    -- a fixed sentence for a person, never a provider's words
  created_at   timestamptz not null default now(),
  processed_at timestamptz
);
create index documents_by_space on documents (space_id, id);
create index documents_by_user on documents (user_id);

create table pages (
  id          bigint generated always as identity primary key,
  tenant_id   bigint not null references tenants on delete cascade,
  document_id bigint not null references documents on delete cascade,
  no          integer not null,         -- from 1, as a person counts
  source      text not null constraint a_known_page_source check (source in ('text', 'image')),
  image_key   text,                     -- the blob that OCR reads; null for a page with text of its own
  status      text not null default 'read'
              constraint a_known_page_status check (status in ('waiting', 'read', 'empty', 'failed')),
  note        text,
  constraint one_row_per_page unique (document_id, no)
);

create table blocks (
  id              bigint generated always as identity primary key,
  tenant_id       bigint not null references tenants on delete cascade,
  space_id        bigint not null references spaces on delete cascade,
  document_id     bigint not null references documents on delete cascade,
  page_no         integer not null default 1,
  no              integer not null,     -- order within the page, from 0
  version         integer not null default 1,
  type            text not null default 'text',
  level           smallint,
  content         text not null,
  -- NFKC: composed and decomposed accents, full-width digits and their plain forms are one word to a reader
  words           tsvector generated always as (to_tsvector('english', normalize(content, nfkc))) stored,
  embedding_model text,
  embedding_dims  integer,
  embedded_at     timestamptz,
  created_at      timestamptz not null default now(),
  constraint one_block_per_place unique (document_id, page_no, no)
);
create index blocks_by_words on blocks using gin (words);
create index blocks_by_space on blocks (space_id, embedding_model);
create index blocks_to_embed on blocks (tenant_id, id) where embedded_at is null;
do $$ begin
  if exists (select from pg_extension where extname = 'vector') then
    alter table blocks add column embedding vector;
  else
    -- bytea: little-endian f32. The sign bits find 200 candidates, the exact dot product ranks them
    -- (recall 0.996 at 200 on 3,000 real vectors).
    alter table blocks add column embedding bytea, add column embedding_sign bit varying;
  end if;
end $$;

-- ── What providers can do, and whether we may ask ────────────────────────────────────────────────────────────────
create table capabilities (
  id            bigint generated always as identity primary key,
  name          text not null,
  tenant_id     bigint references tenants on delete cascade,   -- null: for everybody
  enabled       boolean not null default true,
  epoch         bigint not null default 1,                     -- +1 at each enable: older evidence trips nothing
  reason        text,
  changed_by    text,
  changed_at    timestamptz not null default now(),
  failure_count bigint not null default 0,                     -- refusals seen since it went off
  constraint one_breaker_per_capability_and_tenant unique nulls not distinct (name, tenant_id)
);
insert into capabilities (name) values ('ocr'), ('embedding');

create table capability_events (
  id         bigint generated always as identity primary key,
  capability text not null,
  tenant_id  bigint references tenants on delete cascade,
  at         timestamptz not null default now(),
  actor      text not null,
  action     text not null constraint a_known_action check (action in ('off', 'on', 'already_off', 'already_on', 'stale_evidence', 'note')),
  reason     text,
  epoch      bigint not null
);

create table endpoints (
  id              bigint generated always as identity primary key,
  name            text not null unique,
  capability      text not null,
  protocol        text not null constraint a_known_protocol check (protocol in ('minilm', 'openai', 'tesseract', 'ocr_http')),
  url             text,                    -- null for an engine inside the worker
  model           text not null,
  dims            integer,
  key_env         text,                    -- the NAME of the worker's environment variable; the key is never here
  owner_tenant_id bigint references tenants on delete cascade,
  trust           smallint not null default 1 constraint a_known_trust check (trust between 0 and 3),
  batch           integer not null default 32 constraint a_sane_batch check (batch between 1 and 2048),
  timeout_ms      integer not null default 1800000 constraint a_positive_timeout check (timeout_ms > 0),
  rank            integer not null default 100,          -- the lowest enabled one serves
  enabled         boolean not null default true,         -- the breaker: an operator's word
  epoch           bigint not null default 1,
  reason          text,
  changed_by      text,
  changed_at      timestamptz not null default now(),
  due_at          timestamptz not null default '-infinity',  -- the backoff: heals by itself
  outage_streak   integer not null default 0,
  last_ok_at      timestamptz
);
insert into endpoints (name, capability, protocol, model, dims, trust, batch, timeout_ms, rank) values
  ('minilm', 'embedding', 'minilm', 'all-MiniLM-L6-v2', 384, 3, 16, 1800000, 1000),
  ('tesseract', 'ocr', 'tesseract', 'tesseract-eng', null, 3, 1, 120000, 1000);

-- ── What is to be done ───────────────────────────────────────────────────────────────────────────────────────────
-- A line = jobs that wait at the same gates. Claims ask each open line for its oldest few, so that neither a closed
-- breaker nor a suspended tenant leaves a wall of rows to be read past.
create table lines (
  id         bigint generated always as identity primary key,
  kind       text not null,
  lane       text not null constraint a_known_lane check (lane in ('interactive', 'batch')),
  tenant_id  bigint not null references tenants on delete cascade,
  level      smallint not null,
  capability text,
  constraint one_line_per_gate unique (kind, lane, tenant_id, level)
);

create table jobs (
  id               bigint generated always as identity primary key,
  line_id          bigint not null references lines,
  tenant_id        bigint not null references tenants on delete cascade,
  user_id          bigint references users on delete cascade,
  root_id          bigint,                 -- the job that a person's request made; null = this one
  kind             text not null,
  payload_version  smallint not null default 1,
  item_id          bigint,                 -- what it is about: a document, a page, a block
  item_version     integer not null default 1,
  payload          jsonb not null default '{}',
  status           text not null default 'waiting'
                   constraint a_known_status check (status in ('waiting', 'running', 'parked', 'dead')),
  avail_at         timestamptz not null default now(),   -- waiting: due; running: the lease's end
  attempts         integer not null default 0,           -- +1 at every take, never down: also the fence
  forgiven         integer not null default 0,
  charged          integer generated always as (attempts - forgiven) stored,
  max_charged      integer not null default 5 constraint a_positive_budget check (max_charged > 0),
  item_fails       integer not null default 0,
  crashes          integer not null default 0,
  timeouts_in_row  integer not null default 0,
  claimed_by       bigint,                               -- the worker's boot id
  claimed_at       timestamptz,
  started_at       timestamptz,                          -- just before the first side effect
  cut_at           timestamptz,
  cancel_at        timestamptz,                          -- somebody asked; the holder sees it at its next renewal
  endpoint_id      bigint,
  endpoint_epoch   bigint,
  capability_epoch bigint,
  last_class       text,
  last_cause       text,
  last_error       text constraint a_bounded_error check (length(last_error) <= 500),
  created_at       timestamptz not null default now(),
  constraint never_forgiven_more_than_tried check (0 <= forgiven and forgiven <= attempts),
  constraint a_lease_while_running check ((status = 'running') = (claimed_by is not null))
);
-- Claims: the oldest due of one line. Partial, so finished and running rows are not in it.
create index jobs_to_claim on jobs (line_id, avail_at, id) where status = 'waiting';
-- Reaper and renewal: leases by their end.
create index jobs_with_a_lease on jobs (avail_at) where status = 'running';
-- One open piece of work per thing and version (D11).
create unique index jobs_open_work on jobs (kind, item_id, item_version) where item_id is not null and status in ('waiting', 'running');
create index jobs_by_root on jobs (root_id) where root_id is not null;
create index jobs_by_user on jobs (user_id, id) where user_id is not null;
create index jobs_that_ended_badly on jobs (id) where status in ('parked', 'dead');
alter table jobs set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Finished rows live here, so the live table stays small (D19).
create table jobs_done (
  id           bigint primary key,
  tenant_id    bigint not null,
  user_id      bigint references users on delete cascade,
  root_id      bigint,
  kind         text not null,
  item_id      bigint,
  item_version integer not null,
  status       text not null constraint a_known_end check (status in ('done', 'cancelled', 'superseded')),
  attempts     integer not null,
  forgiven     integer not null,
  last_class   text,
  created_at   timestamptz not null,
  started_at   timestamptz,
  finished_at  timestamptz not null default now()
);
create index done_by_root on jobs_done (root_id) where root_id is not null;
create index done_by_user on jobs_done (user_id, id) where user_id is not null;
create index done_by_time on jobs_done using brin (finished_at);

-- One row per attempt that did not succeed; a success is its finished row (D19).
create table attempts (
  job_id     bigint not null,
  attempt    integer not null,
  tenant_id  bigint not null,
  class      text not null,
  cause      text,
  error      text constraint a_bounded_attempt_error check (length(error) <= 500),
  forgiven   boolean not null,
  worker     bigint,
  claimed_at timestamptz,
  started_at timestamptz,
  ended_at   timestamptz not null default now(),
  primary key (job_id, attempt)
);
create index attempts_by_time on attempts using brin (ended_at);

create table job_events (
  id     bigint generated always as identity primary key,
  job_id bigint not null,
  at     timestamptz not null default now(),
  actor  text not null,
  action text not null constraint a_known_job_action check (action in ('retry', 'cancel')),
  reason text
);

create table schedules (
  name    text primary key,
  kind    text not null,
  payload jsonb not null default '{}',
  every   interval not null constraint a_positive_period check (every > interval '0'),
  next_at timestamptz not null default now(),
  enabled boolean not null default true
);
insert into schedules (name, kind, every, next_at) values ('retention', 'retention', interval '1 hour', now() + interval '1 hour');

-- A question's vector, for the one who waits and for the next who asks the same. Not worth an fsync (B44).
create unlogged table answers (
  job_id     bigint primary key,
  class      text,                       -- null: answered
  model      text,
  vector     bytea,
  created_at timestamptz not null default now()
);
create unlogged table question_vectors (
  model      text not null,
  text_hash  bytea not null,
  vector     bytea not null,
  created_at timestamptz not null default now(),
  primary key (model, text_hash)
);

create table idempotency_keys (
  tenant_id    bigint not null references tenants on delete cascade,
  user_id      bigint not null references users on delete cascade,
  route        text not null,
  key          text not null,
  request_hash bytea not null,
  response     jsonb,                    -- null while the first request runs
  created_at   timestamptz not null default now(),
  primary key (tenant_id, user_id, route, key)
);

-- ── Who does it ──────────────────────────────────────────────────────────────────────────────────────────────────
create table workers (
  boot_id     bigint primary key,        -- random per process start; also the key of its session advisory lock
  host        text not null,
  pid         integer not null,
  kinds       text[] not null,
  locked      boolean not null default true,   -- false behind a transaction pooler: then the lease alone decides
  started_at  timestamptz not null default now(),
  seen_at     timestamptz not null default now(),
  lost_at     timestamptz,               -- its lock was found free; cleared when it comes back
  stopped_at  timestamptz,
  late_settle_count bigint not null default 0  -- settles that the fence refused
);
create index workers_alive on workers (seen_at) where stopped_at is null;

-- ── Doors ────────────────────────────────────────────────────────────────────────────────────────────────────────
grant usage on schema public to steadfast_worker, steadfast_api;
grant select, insert, update, delete on all tables in schema public to steadfast_worker;
grant usage on all sequences in schema public to steadfast_worker, steadfast_api;
-- The worker works; it does not make people, tokens or settings.
revoke insert, update, delete on tenants, users, spaces, space_members, tokens, settings from steadfast_worker;

grant select on settings, tenants, users, spaces, space_members, capabilities, endpoints, lines, workers, documents, pages, blocks,
  jobs, jobs_done, attempts, answers, question_vectors, idempotency_keys to steadfast_api;
grant insert on lines, documents, jobs, idempotency_keys, job_events to steadfast_api;
grant update on jobs, idempotency_keys, documents to steadfast_api;
grant update (status, note) on pages to steadfast_api; -- a replayed page waits again
grant delete on jobs, idempotency_keys, answers, documents to steadfast_api;

create function steadfast_tenant() returns bigint language sql stable parallel safe
  return nullif(current_setting('steadfast.tenant', true), '')::bigint;

do $$
declare t text;
begin
  foreach t in array array['users', 'spaces', 'space_members', 'documents', 'pages', 'blocks', 'jobs', 'jobs_done', 'attempts', 'idempotency_keys'] loop
    execute format('alter table %I enable row level security', t);
    execute format('create policy own_tenant_only on %I to steadfast_api using (tenant_id = steadfast_tenant()) with check (tenant_id = steadfast_tenant())', t);
    execute format('create policy every_tenant on %I to steadfast_worker using (true) with check (true)', t);
  end loop;
end $$;

-- The one door before a tenant is known: a token's hash in, its owner out. The API cannot read the tokens table.
create function authenticate(token_hash bytea) returns table (tenant_id bigint, user_id bigint, token_id bigint)
language sql security definer set search_path = public, pg_temp as $$
  update tokens t set last_used_at = now()
   where t.hash = token_hash and t.revoked_at is null and (t.expires_at is null or t.expires_at > now())
     and (t.last_used_at is null or t.last_used_at < now() - interval '1 minute');
  select t.tenant_id, t.user_id, t.id from tokens t join tenants on tenants.id = t.tenant_id and tenants.state <> 'offboarding'
   where t.hash = token_hash and t.revoked_at is null and (t.expires_at is null or t.expires_at > now());
$$;
revoke execute on function authenticate(bytea) from public;
grant execute on function authenticate(bytea) to steadfast_api;
