select attempt, class, cause, error, forgiven, worker, claimed_at, started_at, ended_at from attempts where job_id = $1 order by attempt
