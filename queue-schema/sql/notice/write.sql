update notices
   set opening = case when $2 then $3 else opening end, opening_at = case when $2 then now() else opening_at end,
       closing = case when $2 then closing else $3 end, closing_at = case when $2 then closing_at else now() end, error = $4
 where id = $1 and ($2 or round = $5)
