select id, title, media_type, blob_key from documents where id = $1 and version = $2
