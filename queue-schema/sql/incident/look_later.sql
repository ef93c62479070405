update incidents set look_at = greatest(look_at, now() + make_interval(secs => $2)) where id = $1
