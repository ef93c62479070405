select exists (select from documents where id = $1 and space_id is null)
