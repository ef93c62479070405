-- The vector of the same words by the model that would serve now.
select v.model, v.vector
  from question_vectors v
 where v.text_hash = $1
   and v.model = (select e.model from endpoints e where e.capability = 'embedding' and e.enabled
                     and (e.owner_tenant_id is null or e.owner_tenant_id = $2)
                     and not exists ( -- as in claim/take.sql
                               select from endpoints r
                                where r.capability = e.capability and (r.rank, r.id) < (e.rank, e.id) and (r.enabled or r.tripped_at is not null)
                                  and r.trust >= 1 and (r.owner_tenant_id is null or r.owner_tenant_id = $2)
                                  and (e.url is null and r.url is not null or e.owner_tenant_id is null and r.owner_tenant_id is not null))
                   order by e.rank, e.id limit 1)
