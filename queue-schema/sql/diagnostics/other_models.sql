-- Blocks in this caller's Spaces with a vector of another model than the question's: they cannot be found by meaning until they
-- are embedded anew. Two ranges instead of `<>`, which no index serves; "a thousand" means "many".
select count(*) from (
  select 1
    from blocks b join space_members m on m.space_id = b.space_id and m.user_id = $2 and m.tenant_id = $1
   where b.tenant_id = $1 and ($3::bigint[] is null or b.space_id = any ($3))
     and (b.embedding_model < $4 or b.embedding_model > $4)
   limit 1000) x
