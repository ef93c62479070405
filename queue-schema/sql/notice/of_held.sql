-- Work of this person's is held from its birth on: one notice under the open incident, whatever the number of jobs (P27). Where the
-- closing part was due or had gone out already, a new round begins, without a second apology: not all has ended after all.
insert into notices (incident_id, tenant_id, user_id, wording_version)
select i.id, $2, $3, $4 from incidents i
 where i.capability = $1 and i.closed_at is null and i.enabled_at is null and (i.tenant_id is null or i.tenant_id = $2)
 order by i.tenant_id nulls first limit 1
on conflict (incident_id, user_id) do update
   set closing = null, closing_wording = null, closing_at = null, round = notices.round + 1
 where notices.closing is not null
