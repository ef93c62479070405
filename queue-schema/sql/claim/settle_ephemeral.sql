-- A question that is over leaves nothing (B44). Same fence as a success.
delete from jobs j using unnest((select $1::bigint[]), (select $2::int[])) as s(id, attempt)
 where j.id = s.id and case when j.status = 'running' and j.attempts = s.attempt then true else false end
returning j.id
