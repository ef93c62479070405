-- The job that gave up on the part that is due (as in due.sql): sent again, it goes on under its own number and with its history.
select j.id from notices n join jobs j on j.status = 'dead' and j.kind = 'notice' and j.item_id = n.id and j.item_version = case when n.closing = 'due' then 1 + n.round else 1 end
 where n.id = $1
