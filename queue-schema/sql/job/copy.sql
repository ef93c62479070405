copy jobs (line_id, tenant_id, user_id, root_id, kind, max_charged, payload) from stdin
