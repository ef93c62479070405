-- Newest first; $1: one of them, $2: only those that are open.
select i.id, i.capability, i.tenant_id, i.opened_at, i.opened_by, i.reason, i.endpoints, i.failure_count, i.enabled_at, i.closed_at, i.closed_by,
       (select count(*) from notices n where n.incident_id = i.id) as user_count,
       (select count(*) from notices n where n.incident_id = i.id and (n.opening = 'due' or n.closing = 'due')) as due_count,
       (select count(*) from notices n where n.incident_id = i.id and (n.opening in ('unknown', 'sending') or n.closing in ('unknown', 'sending'))) as unknown_count,
       (select count(*) from notices n where n.incident_id = i.id and (n.opening in ('failed', 'no_address') or n.closing in ('failed', 'no_address'))) as unsent_count,
       (select count(*) from notices n where n.incident_id = i.id and n.closing_wording = 'landed') as landed_count,
       (select count(*) from notices n where n.incident_id = i.id and n.closing_wording = 'needs_attention') as attention_count
  from incidents i
 where ($1::bigint is null or i.id = $1) and (not $2 or i.closed_at is null)
 order by i.id desc limit $3
