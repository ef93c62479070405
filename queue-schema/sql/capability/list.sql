select c.name, c.tenant_id, c.enabled, c.epoch, c.reason, c.changed_by, c.changed_at, c.failure_count, c.ramp_limit,
       case when c.enabled then 0 else
         (select count(*) from lines l join jobs j on j.line_id = l.id and j.status = 'waiting'
           where l.capability = c.name and (c.tenant_id is null or c.tenant_id = l.tenant_id)) end as held_count
  from capabilities c order by c.name, c.tenant_id nulls first
