update documents set status = 'pending', error = null, processed_at = null where id = $1
