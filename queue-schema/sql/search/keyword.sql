-- Blocks of the user's Spaces that match, best first. The tenant stands here and in the row-level policy: belt and braces.
select b.id, ts_rank_cd(b.words, $3::text::tsquery, 32)::float8 as score
  from blocks b join space_members m on m.space_id = b.space_id and m.user_id = $2 and m.tenant_id = $1
 where b.tenant_id = $1 and ($4::bigint[] is null or b.space_id = any ($4))
   and b.words @@ $3::text::tsquery
 order by score desc, b.id
 limit $5
