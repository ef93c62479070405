-- Blocks of the user's Spaces that match, best first. The tenant stands here and in the row-level policy: belt and braces.
-- How many of the question's words stand in a block is counted for those few alone that are given back.
with found as (
  select b.id, b.words, ts_rank_cd(b.words, $3::text::tsquery, 32)::float8 as score
    from blocks b join space_members m on m.space_id = b.space_id and m.user_id = $2 and m.tenant_id = $1
   where b.tenant_id = $1 and ($4::bigint[] is null or b.space_id = any ($4))
     and b.words @@ $3::text::tsquery
   order by score desc, b.id
   limit $5)
select id, score, (select count(*) from unnest($6::text[]) as w where words @@ w::tsquery)::float8 / cardinality($6::text[]) as covers
  from found
 order by score desc, id
