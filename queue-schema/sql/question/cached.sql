-- The vector of the same words by the model that would serve now.
select v.model, v.vector
  from question_vectors v
 where v.text_hash = $1
   and v.model = (select e.model from endpoints e where e.capability = 'embedding' and e.enabled
                     and (e.owner_tenant_id is null or e.owner_tenant_id = $2) order by e.rank, e.id limit 1)
