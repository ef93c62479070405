-- The given-up jobs behind one id of this user's: the job itself, and what followed from it.
select j.id, j.kind, j.last_class as class
  from jobs j
 where j.tenant_id = $1 and j.user_id = $2 and (j.id = $3 or j.root_id = $3) and j.status in ('parked', 'dead')
 order by j.id
