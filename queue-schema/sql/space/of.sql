-- An id before a name: a Space named like another's id must not catch what was meant for that one.
select s.id
  from spaces s join space_members m on m.space_id = s.id and m.user_id = $2
 where s.tenant_id = $1 and (s.id::text = $3 or lower(s.name) = lower($3))
 order by s.id::text = $3 desc, s.name = $3 desc, s.id
 limit 1
