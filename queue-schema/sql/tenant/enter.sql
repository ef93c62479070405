-- For this transaction only: which tenant's rows are there, and how long a statement may take.
select set_config('steadfast.tenant', $1, true), set_config('statement_timeout', $2, true)
