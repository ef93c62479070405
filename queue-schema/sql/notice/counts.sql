select count(*) filter (where opening = 'due' or closing = 'due') as due,
       count(*) filter (where opening = 'unknown' or closing = 'unknown') as unknown,
       count(*) filter (where opening in ('failed', 'no_address') or closing in ('failed', 'no_address')) as unsent
  from notices
