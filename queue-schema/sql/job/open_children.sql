-- How the rest of a request stands, seen from its first job: what must land before a person is told "completed".
select count(*) filter (where kind <> 'embed' and status in ('waiting', 'running')) as open_count,
       count(*) filter (where kind <> 'embed' and status = 'running') as running_count,
       count(*) filter (where kind <> 'embed' and status in ('dead', 'parked')) as failed_count,
       count(*) filter (where kind = 'embed') as embed_count
  from jobs where root_id = $1
