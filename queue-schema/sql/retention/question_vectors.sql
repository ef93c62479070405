delete from question_vectors where ctid = any (array(select ctid from question_vectors where created_at < now() - make_interval(secs => $1) limit 10000))
