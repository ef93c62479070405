-- A question's words as the index has them, as a query for all of them and one for any. Built from lexemes, each quoted, so
-- that nothing in the text reaches the query parser as syntax (public case 109). Null: nothing but stop-words (110).
-- The 64 longest are enough of any question, and bound what a pasted page may cost.
with lexeme as (
  select '''' || replace(replace(l, '\', '\\'), '''', '''''') || '''' as quoted
    from unnest(tsvector_to_array(to_tsvector('english', normalize($1, nfkc)))) as l
   order by length(l) desc, l
   limit 64)
select string_agg(quoted, ' & ') as all_words, string_agg(quoted, ' | ') as any_word, count(*) as word_count,
       coalesce(array_agg(quoted), '{}') as words from lexeme
