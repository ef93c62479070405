update pages set status = 'failed', note = $2 where id = $1 returning document_id
