select count(*) from jobs_done where root_id = $1 and kind <> 'embed' and status = 'done'
