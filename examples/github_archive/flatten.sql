-- What the table keeps of an event: names for whom and where, and the payload as it came, JSON text.
select cast(id as bigint) as id, type, created_at, actor ->> '$.login' as actor, repo ->> '$.name' as repo, payload
from _rows
