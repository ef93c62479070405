-- Calls under way behind this breaker are given up; their holders see it within a poll. Interactive ones too: their asker is told.
update jobs j set interrupt_at = now()
  from lines l
 where j.status = 'running' and l.id = j.line_id and l.capability = $1 and ($2::bigint is null or j.tenant_id = $2)
