select tenant_id, user_id from authenticate($1)
