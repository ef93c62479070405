-- Its job ended dead: the part that was on its way will not be sent.
update notices set opening = case when opening in ('due', 'sending') and closing is null then 'failed' else opening end,
       closing = case when closing in ('due', 'sending') then 'failed' else closing end
 where id = $1
