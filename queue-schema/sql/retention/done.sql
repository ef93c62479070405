delete from jobs_done where ctid = any (array(select ctid from jobs_done where finished_at < now() - make_interval(secs => $1) limit 10000))
