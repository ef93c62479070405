-- Its job ended dead: the part that was on its way will not be sent. Which one that was, its state says; the other one has a job of its own.
-- The notice says why, as its job does.
update notices set opening = case when opening = 'sending' and closing is distinct from 'sending' or opening = 'due' and closing is null then 'failed' else opening end,
       closing = case when closing = 'sending' or closing = 'due' and opening <> 'sending' then 'failed' else closing end,
       error = coalesce((select j.last_error from jobs j where j.kind = 'notice' and j.item_id = $1 and j.status = 'dead' order by j.id desc limit 1), error)
 where id = $1
