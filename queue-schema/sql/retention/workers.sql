delete from workers where ctid = any (array(select ctid from workers where stopped_at < now() - make_interval(secs => $1) limit 10000))
