with p as (update pages set status = 'waiting', note = null where id = $1 returning document_id)
update documents d set status = 'processing', error = null, processed_at = null from p where d.id = p.document_id
