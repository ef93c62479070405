delete from answers where ctid = any (array(select ctid from answers where created_at < now() - make_interval(secs => $1) limit 10000))
