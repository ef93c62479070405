-- Exact, by cosine distance; only vectors of the question's own model and length can be compared with it.
select b.id, 1 - (b.embedding <=> $3::real[]::vector)::float8 as score, 1::float8 as covers
  from blocks b join space_members m on m.space_id = b.space_id and m.user_id = $2 and m.tenant_id = $1
 where b.tenant_id = $1 and ($4::bigint[] is null or b.space_id = any ($4))
   and b.embedding_model = $5 and b.embedding_dims = cardinality($3::real[])
   and (not $6 or exists (select from documents d where d.id = b.document_id and d.tenant_id = $1 and d.conversation is not null
                                                    and ($7::text is null or d.conversation = $7)))
 order by b.embedding <=> $3::real[]::vector, b.id
 limit $8
