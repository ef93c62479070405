with told as (insert into answers (job_id, class) values ($1, $2) on conflict (job_id) do nothing)
select pg_notify('steadfast_answers', $1::text)
