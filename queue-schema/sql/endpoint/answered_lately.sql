select e.last_ok_at is not null and e.last_ok_at >= least(j.claimed_at, now() - make_interval(secs => $3))
  from endpoints e join jobs j on j.id = $2 where e.id = $1
