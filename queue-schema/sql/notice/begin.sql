-- Marked before the first byte leaves (B25). No row: it was not due, or somebody has begun, or ($3) its round is over.
update notices set opening = case when $2 then 'sending' else opening end, closing = case when $2 then closing else 'sending' end
 where id = $1 and case when $2 then opening else closing end = 'due' and ($2 or round = $3)
returning id
