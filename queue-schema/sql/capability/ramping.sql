-- Locks the breakers of this capability that are on a ramp, so that takes behind them go one after the other.
select id from capabilities where name = $1 and ramp_limit is not null order by id for update
