-- Issues that were opened, by label: a list of objects within an object.
select label ->> '$.name' as label, count(*) as issues
from (select unnest(from_json(payload -> '$.issue.labels', '["JSON"]')) as label
      from events where type = 'IssuesEvent' and (payload ->> '$.action') = 'opened')
group by label order by issues desc
