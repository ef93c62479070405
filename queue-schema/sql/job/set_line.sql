update jobs set line_id = $2 where id = $1
