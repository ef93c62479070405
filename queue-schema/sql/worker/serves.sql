select exists (select from workers where stopped_at is null and lost_at is null and $1 = any (kinds) and seen_at > now() - make_interval(secs => $2))
