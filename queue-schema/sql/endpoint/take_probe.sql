-- base × 2^streak up to the cap, ± 20 %: retry::Pace::endpoint in SQL's words, because the row that decides is here.
update endpoints e
   set outage_streak = e.outage_streak + 1, probe_error = null,
       due_at = now() + make_interval(secs => least($4, $3 * power(2, least(e.outage_streak, 30))) * (0.8 + 0.4 * $2))
 where e.id = (select id from endpoints where outage_streak > 0 and due_at <= now() and enabled and protocol = any ($1)
                order by due_at limit 1 for update skip locked)
returning id, name, capability, protocol, url, model, dims, key_env, owner_tenant_id, trust, batch, timeout_ms, rank, enabled, epoch, outage_streak, last_ok_at,
          tripped_at, refusal_count, reason, changed_by, changed_at
