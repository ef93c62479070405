select n.id, n.incident_id, n.tenant_id, n.user_id, u.name as user_name, coalesce(u.email <> '', false) as has_address, n.opening, n.opening_at, n.closing,
       n.closing_wording, n.closing_at, n.round, n.error, n.created_at
  from notices n join users u on u.id = n.user_id where n.id = $1
