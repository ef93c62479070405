-- Nothing was sent for certain: due again; an opening part only while there is something to open, it is not sent after the event.
update notices set opening = case when not $2 then opening when closing is null then 'due' else 'skipped' end, closing = case when $2 then closing else 'due' end, error = $3
 where id = $1 and case when $2 then opening else closing end = 'sending' and ($2 or round = $4)
