-- The endpoint does not answer its control text either, so no item is to blame for the timeouts before (D3).
with said as (update endpoints set probe_error = $2 where id = $1 and outage_streak > 0)
update jobs set doubt_endpoint_id = null, last_class = 'outage' where doubt_endpoint_id = $1
