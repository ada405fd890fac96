-- Pushes as structs: commits by repository, how many of them make something faster, and by how many people.
with pushes as (
    select repo, from_json(payload, '{"commits": [{"message": "VARCHAR", "author": {"name": "VARCHAR"}}]}') as push
    from events where type = 'PushEvent'
),
commits as (select repo, unnest(push.commits) as pushed from pushes)
select repo, count(*) as commits, count(*) filter (pushed.message like 'Faster%') as faster,
       count(distinct pushed.author.name) as people
from commits group by repo order by commits desc
