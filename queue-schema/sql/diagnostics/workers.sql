-- Live workers by kind.
select k as kind, count(*) as count
  from workers w cross join unnest(w.kinds) as k
 where w.stopped_at is null and w.lost_at is null and w.seen_at > now() - make_interval(secs => $1)
 group by k order by k
