-- Work that waits for somebody to say where it belongs, by kind, and a few of its ids to begin with.
select kind, count(*) as count, (array_agg(id order by id))[1:5] as ids from jobs where status = 'parked' and last_class = 'place_gone' group by kind order by kind
