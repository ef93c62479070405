-- The endpoint is well, so the timeouts that were in doubt were the items' own (D3): counted now, and parked at the third in a row (B2).
update jobs set timeouts_in_row = timeouts_in_row + 1, doubt_endpoint_id = null,
       status = case when timeouts_in_row + 1 >= $2 then 'parked' else status end,
       last_class = case when timeouts_in_row + 1 >= $2 then 'too_slow' else last_class end
 where doubt_endpoint_id = $1 and status = 'waiting'
returning id, kind, item_id, status, false as cancelled, last_class as class, last_cause as cause, null::text as error
