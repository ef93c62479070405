select n.id, i.id as incident_id, i.capability, i.opened_at, n.user_id, u.email, n.opening, n.closing, n.closing_wording, n.round
  from notices n join incidents i on i.id = n.incident_id join users u on u.id = n.user_id where n.id = $1
