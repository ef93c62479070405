update incidents set closed_at = now(), closed_by = $2 where id = $1 and closed_at is null
