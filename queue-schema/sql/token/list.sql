select k.id, k.name, t.name as tenant, u.name as "user", k.created_at, k.last_used_at, k.expires_at, k.revoked_at
  from tokens k join tenants t on t.id = k.tenant_id join users u on u.id = k.user_id
 order by k.id desc
