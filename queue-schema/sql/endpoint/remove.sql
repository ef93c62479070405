delete from endpoints where name = $1
