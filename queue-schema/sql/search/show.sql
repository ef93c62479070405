-- What is shown of the blocks on one page of results, in the order asked for. The snippet's marks are two private-use characters,
-- taken out of the text beforehand, so that no document can forge one.
select b.id, b.document_id, b.space_id, b.page_no, b.no, b.version, b.content, b.created_at, b.embedded_at,
       d.title, d.media_type, d.user_id, d.conversation, u.name as owner,
       ts_headline('english', translate(normalize(b.content, nfkc), U&'\E000\E001', ''), coalesce($4::text, '')::tsquery,
                   U&'StartSel=\E000, StopSel=\E001, MaxWords=40, MinWords=15, MaxFragments=2, FragmentDelimiter=" … "') as marked
  from unnest($3::bigint[]) with ordinality as w(id, place)
  join blocks b on b.id = w.id and b.tenant_id = $1
  join space_members m on m.space_id = b.space_id and m.user_id = $2 and m.tenant_id = $1
  join documents d on d.id = b.document_id and d.tenant_id = $1
  join users u on u.id = d.user_id and u.tenant_id = $1
 order by w.place
