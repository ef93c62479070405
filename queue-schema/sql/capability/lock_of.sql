-- Breaker rows before endpoint rows, as a flip by hand takes them: two orders would wait for each other in a ring.
select c.id from endpoints e join capabilities c on c.name = e.capability and (c.tenant_id is null or c.tenant_id = e.owner_tenant_id)
 where e.id = $1 order by c.id for update of c
