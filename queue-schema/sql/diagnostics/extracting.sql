-- Whether what is handed in now will be worked on: a live worker for the first step.
select exists (select from workers w where w.stopped_at is null and w.lost_at is null and 'extract' = any (w.kinds)
                                       and w.seen_at > now() - make_interval(secs => $1))
