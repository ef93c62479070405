-- The asker is gone or has its answer: neither the question nor the answer stays.
with a as (delete from answers where job_id = $1)
delete from jobs where id = $1 and status = 'waiting'
