delete from idempotency_keys where ctid = any (array(select ctid from idempotency_keys where created_at < now() - make_interval(secs => $1) limit 10000))
