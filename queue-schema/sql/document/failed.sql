update documents set status = 'failed', error = $2, processed_at = now() where id = $1
