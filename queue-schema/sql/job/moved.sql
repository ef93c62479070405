insert into job_events (job_id, actor, action, reason) select unnest($1::bigint[]), $2, 'move', $3
