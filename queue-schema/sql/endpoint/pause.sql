update endpoints set due_at = greatest(due_at, now() + make_interval(secs => $2)) where id = $1
