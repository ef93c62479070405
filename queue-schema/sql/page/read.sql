update pages set status = $2, note = $3 where id = $1
