update tokens set revoked_at = now() where id = $1 and revoked_at is null
