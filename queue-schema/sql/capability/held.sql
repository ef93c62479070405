-- What waits behind it, told exactly up to 10,000: past that the number means "very many", not a sum worth its scan.
select count(*) from (
  select from lines l join jobs j on j.line_id = l.id and j.status = 'waiting'
   where l.capability = $1 and ($2::bigint is null or l.tenant_id = $2) limit 10001) x
