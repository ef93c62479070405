delete from jobs where ctid = any (array(select ctid from jobs where kind = 'question' and status = 'waiting' and created_at < now() - make_interval(secs => $1) limit 10000))
