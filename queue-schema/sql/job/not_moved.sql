-- Why these jobs' documents did not get that place ($2, as in job/move): what the job is, whether its document lacks a place, whether there is such a
-- Space in its tenant, and whether its owner is a member there.
select a.id, j.kind, j.status, coalesce(d.space_id is null or j.status = 'parked' and j.last_class = 'place_gone', false) as lacks_place,
       t.name as tenant, u.name as owner, s.name as space, m.user_id is not null as member
  from unnest($1::bigint[]) with ordinality as a (id, nth)
  left join jobs j on j.id = a.id
  left join pages p on j.kind = 'ocr' and p.id = j.item_id
  left join documents d on d.id = case j.kind when 'extract' then j.item_id when 'ocr' then p.document_id end
  left join tenants t on t.id = d.tenant_id
  left join users u on u.id = d.user_id
  left join lateral (select s.id, s.name from spaces s
                      where s.tenant_id = d.tenant_id and (s.id::text = $2 or lower(s.name) = lower($2))
                      order by s.id::text = $2 desc, s.id limit 1) s on true
  left join space_members m on m.space_id = s.id and m.user_id = d.user_id
 order by a.nth
