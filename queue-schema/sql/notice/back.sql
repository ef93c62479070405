-- Nothing was sent for certain: due again.
update notices set opening = case when $2 then 'due' else opening end, closing = case when $2 then closing else 'due' end, error = $3
 where id = $1 and case when $2 then opening else closing end = 'sending'
