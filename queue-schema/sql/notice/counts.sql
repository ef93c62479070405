-- What is on its way at any age; what went wrong only while somebody may still care: an incident that closed a week ago is history.
select count(*) filter (where n.opening = 'due' or n.closing = 'due') as due,
       count(*) filter (where i.recent and (n.opening = 'unknown' or n.closing = 'unknown')) as unknown,
       count(*) filter (where i.recent and (n.opening = 'failed' or n.closing = 'failed')) as failed,
       count(*) filter (where i.recent and (n.opening = 'no_address' or n.closing = 'no_address')) as no_address,
       (array_agg(n.error order by n.id desc) filter (where n.error is not null and (n.opening = 'due' or n.closing = 'due')))[1] as last_error,
       coalesce((array_agg(distinct n.incident_id) filter (where i.recent and (n.opening in ('unknown', 'failed') or n.closing in ('unknown', 'failed'))))[1:3], '{}') as incidents
  from notices n
  join (select id, closed_at is null or closed_at > now() - interval '7 days' as recent from incidents) i on i.id = n.incident_id
