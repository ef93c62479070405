select coalesce(a.atttypid = to_regtype('vector'), false) from pg_attribute a where a.attrelid = 'blocks'::regclass and a.attname = 'embedding'
