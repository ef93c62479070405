-- $3 groups went well, or $4 something was in trouble: twice as many once as many as the limit went well, half in trouble, and no
-- limit any more when it would reach what the fleet can run at once.
update capabilities c
   set ramp_limit = case when $4 then greatest(1, c.ramp_limit / 2)
                         when c.ramp_ok + $3 < c.ramp_limit then c.ramp_limit
                         when c.ramp_limit * 2 < fleet.places then c.ramp_limit * 2 end,
       ramp_ok = case when $4 or c.ramp_ok + $3 >= c.ramp_limit then 0 else c.ramp_ok + $3 end
  from (select coalesce(sum(places), 1) as places from workers where stopped_at is null and lost_at is null) fleet
 where c.name = $1 and (c.tenant_id is null or c.tenant_id = $2) and c.ramp_limit is not null
