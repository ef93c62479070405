-- Work that is held: who stopped what and why, who was told, and how the work comes back into its own place.

-- ── Breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────
-- Turned on, a capability is asked by few at first: `ramp_limit` groups at once, doubled after as many successes (B22).
alter table capabilities
  add column ramp_limit integer constraint a_positive_ramp check (ramp_limit >= 1),   -- null: no ramp
  add column ramp_ok    integer not null default 0;                                   -- successes since the limit last moved
-- Round the tenants while a ramp lasts.
alter table lines add column ramped_at timestamptz not null default '-infinity';
-- How many groups this process runs at once; a ramp is over when it reaches the fleet's sum.
alter table workers add column places integer not null default 1;

-- An endpoint is stopped before its capability (B15): `enabled` is the breaker, `tripped_at` says that a refusal did it.
alter table endpoints
  add column tripped_at    timestamptz,
  add column refusal_count bigint not null default 0;
-- Apart from the capabilities' history: there one row is one stop of everybody's work.
create table endpoint_events (
  id         bigint generated always as identity primary key,
  endpoint   text not null,
  capability text not null,
  tenant_id  bigint references tenants on delete cascade,
  at         timestamptz not null default now(),
  actor      text not null,
  action     text not null constraint a_known_endpoint_action check (action in ('off', 'on', 'already_off', 'already_on', 'stale_evidence')),
  reason     text,
  epoch      bigint not null
);

-- interrupt_at: `breaker off --now`; the holder gives the call up uncharged. doubt_endpoint_id: the last attempt ran into its time
-- limit at this endpoint, whose probe says whose fault that was (D3).
alter table jobs
  add column interrupt_at      timestamptz,
  add column doubt_endpoint_id bigint;
create index jobs_in_doubt on jobs (doubt_endpoint_id) where doubt_endpoint_id is not null;

-- ── Incidents and notices ────────────────────────────────────────────────────────────────────────────────────────
-- From the first off until it has been on for long enough and all that was held under it has ended: off and on and off again
-- is one incident, with one apology (B23).
create table incidents (
  id            bigint generated always as identity primary key,
  capability    text not null,
  tenant_id     bigint references tenants on delete cascade,   -- null: everybody's
  opened_at     timestamptz not null default now(),
  opened_by     text not null,
  reason        text not null,                                 -- the first one, for good
  endpoints     text[] not null default '{}',                  -- that refused
  failure_count bigint not null default 0,
  enabled_at    timestamptz,                                   -- when it was last turned on; null while stopped
  last_job_id   bigint,                                        -- the newest job at that moment: what was held is at or below it (D18)
  look_at       timestamptz not null default '-infinity',      -- when to look again whether it has landed
  closed_at     timestamptz,
  closed_by     text,
  constraint what_was_held_is_known_once_on check ((enabled_at is null) = (last_job_id is null))
);
create unique index incidents_one_open on incidents (capability, tenant_id) nulls not distinct where closed_at is null;

-- One message to one person about one incident, in two parts: that it is held, and how it ended. A part is `sending` before its
-- first byte leaves; found so after a crash it is `unknown`, which only an operator sends again (B25).
create table notices (
  id              bigint generated always as identity primary key,
  incident_id     bigint not null references incidents on delete cascade,
  tenant_id       bigint not null references tenants on delete cascade,
  user_id         bigint not null references users on delete cascade,
  wording_version smallint not null,
  created_at      timestamptz not null default now(),
  opening         text not null default 'due'
                  constraint a_known_opening check (opening in ('due', 'sending', 'sent', 'unknown', 'failed', 'no_address', 'skipped')),
  opening_at      timestamptz,
  closing         text                                         -- null until all of theirs has ended; none: nothing of it was left to tell
                  constraint a_known_closing check (closing in ('due', 'sending', 'sent', 'unknown', 'failed', 'no_address', 'none')),
  closing_wording text constraint a_known_wording check (closing_wording in ('landed', 'needs_attention')),
  closing_at      timestamptz,
  round           integer not null default 1,                  -- +1 when work is held again after the closing part went out
  error           text constraint a_bounded_notice_error check (length(error) <= 500),
  constraint one_notice_per_incident_and_user unique (incident_id, user_id)
);
create index notices_by_user on notices (user_id);
create index notices_to_send on notices (id) where opening = 'due' or closing = 'due';
create index notices_to_close on notices (incident_id) where closing is null;

-- ── Places that go ───────────────────────────────────────────────────────────────────────────────────────────────
-- A Space that is deleted takes what has landed in it along. What is still on its way keeps its bytes and its jobs, without a
-- place: its work is parked as `place_gone` until somebody says where it belongs (B27). Null matches nobody's membership, so
-- nothing loose can be found.
alter table documents alter column space_id drop not null;
alter table blocks alter column space_id drop not null;
create function keep_what_is_on_its_way() returns trigger language plpgsql set search_path = public, pg_temp as $$
begin
  update blocks b set space_id = null from documents d
   where d.space_id = old.id and d.status in ('pending', 'processing') and b.document_id = d.id;
  update documents set space_id = null where space_id = old.id and status in ('pending', 'processing');
  return old;
end $$;
create trigger a_space_goes before delete on spaces for each row execute function keep_what_is_on_its_way();

-- Bytes whose rows went, by whatever cascade: the next retention deletes them, and it comes soon (B50).
create table dropped_blobs (
  key        text primary key,
  dropped_at timestamptz not null default now()
);
create function drop_blobs() returns trigger language plpgsql security definer set search_path = public, pg_temp as $$
begin
  if tg_table_name = 'documents' then
    insert into dropped_blobs (key) select blob_key from gone on conflict do nothing;
  else
    insert into dropped_blobs (key) select image_key from gone where image_key is not null on conflict do nothing;
  end if;
  if found then
    update schedules set next_at = now() where name = 'retention' and enabled and next_at > now() + interval '5 seconds';
  end if;
  return null;
end $$;
create trigger documents_go after delete on documents referencing old table as gone for each statement execute function drop_blobs();
create trigger pages_go after delete on pages referencing old table as gone for each statement execute function drop_blobs();

-- Of somebody who is deleted nothing stays: what names a job and not a person goes too.
create function forget_a_person() returns trigger language plpgsql set search_path = public, pg_temp as $$
declare gone bigint[] := array(select id from jobs where user_id = old.id union all select id from jobs_done where user_id = old.id);
begin
  delete from attempts where job_id = any (gone);
  delete from job_events where job_id = any (gone);
  return old;
end $$;
create trigger a_person_goes before delete on users for each row execute function forget_a_person();

alter table job_events drop constraint a_known_job_action;
alter table job_events add constraint a_known_job_action check (action in ('retry', 'cancel', 'move', 'interrupt'));

-- ── Doors ────────────────────────────────────────────────────────────────────────────────────────────────────────
grant select, insert, update, delete on incidents, notices, dropped_blobs, endpoint_events to steadfast_worker;
grant usage on all sequences in schema public to steadfast_worker;
