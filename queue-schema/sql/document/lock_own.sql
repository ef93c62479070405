-- Only who handed it in may take it away; others in the Space read it.
select d.id from documents d join space_members m on m.space_id = d.space_id and m.user_id = $2
 where d.id = $3 and d.tenant_id = $1 and d.user_id = $2
   for update of d
