-- No pgvector: the blocks whose signs differ least are candidates, and the caller ranks them exactly by their vectors.
-- `#` refuses bit strings of different lengths, and a planner may try the operator before the filter: hence the CASE.
select b.id, b.embedding
  from blocks b join space_members m on m.space_id = b.space_id and m.user_id = $2 and m.tenant_id = $1
 where b.tenant_id = $1 and ($4::bigint[] is null or b.space_id = any ($4))
   and b.embedding_model = $5 and b.embedding_dims = length($3::text)
   and (not $6 or exists (select from documents d where d.id = b.document_id and d.tenant_id = $1 and d.conversation is not null
                                                    and ($7::text is null or d.conversation = $7)))
 order by case when length(b.embedding_sign) = length($3::text) then bit_count(b.embedding_sign # $3::text::bit varying) end, b.id
 limit $8
