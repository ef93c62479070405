-- Its job ended dead: the part that was on its way will not be sent. Which one that was, its state says; the other one has a job of its own.
update notices set opening = case when opening = 'sending' and closing is distinct from 'sending' or opening = 'due' and closing is null then 'failed' else opening end,
       closing = case when closing = 'sending' or closing = 'due' and opening <> 'sending' then 'failed' else closing end
 where id = $1
