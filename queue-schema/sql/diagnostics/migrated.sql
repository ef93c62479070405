select to_regclass('public.idempotency_keys') is not null and to_regprocedure('public.authenticate(bytea)') is not null
