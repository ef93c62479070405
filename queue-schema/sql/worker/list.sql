select w.boot_id, w.host, w.pid, w.kinds, w.started_at, w.seen_at, w.lost_at, w.late_settle_count,
       (select count(*) from jobs j where j.status = 'running' and j.claimed_by = w.boot_id) as running_count,
       extract(epoch from now() - w.seen_at)::float8 as silent_seconds
  from workers w where w.stopped_at is null order by w.started_at desc
