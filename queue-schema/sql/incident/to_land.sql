-- One that is on again and due for a look; skip locked, so the fleet looks once. The next look is set before this one is taken, so
-- a look that dies only costs its interval.
update incidents set look_at = now() + make_interval(secs => $1)
 where id = (select id from incidents where closed_at is null and enabled_at is not null and look_at <= now() order by look_at limit 1 for update skip locked)
returning id, capability, tenant_id, opened_at, last_job_id, enabled_at < now() - make_interval(secs => $2) as ripe
