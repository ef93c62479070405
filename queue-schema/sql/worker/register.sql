insert into workers (boot_id, host, pid, kinds, locked, places) values ($1, $2, $3, $4, $5, $6)
on conflict (boot_id) do update set seen_at = now(), lost_at = null, stopped_at = null
