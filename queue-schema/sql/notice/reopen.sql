-- Sent again by an operator's word: the part that failed, or that may or may not have arrived.
update notices set opening = case when closing is null and opening in ('failed', 'unknown', 'no_address') then 'due' else opening end,
       closing = case when closing in ('failed', 'unknown', 'no_address') then 'due' else closing end, error = null
 where id = $1 and (closing in ('failed', 'unknown', 'no_address') or (closing is null and opening in ('failed', 'unknown', 'no_address')))
returning id
