"""The five queries of JSONBench, in the words of each form of the events. Imports the standard library only."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_POSTS: Final = "{kind} = 'commit' AND {operation} = 'create' AND {collection} = 'app.bsky.feed.post'"
QUERIES: Final[Mapping[str, str]] = {
    "events by collection": "SELECT {collection} AS event, count(*) AS n FROM {f} GROUP BY event ORDER BY n DESC",
    "events and users by collection": (
        "SELECT {collection} AS event, count(*) AS n, count(DISTINCT {did}) AS users FROM {f} "
        "WHERE {kind} = 'commit' AND {operation} = 'create' GROUP BY event ORDER BY n DESC"
    ),
    "events by hour": (
        "SELECT {collection} AS event, {hour} AS hour_of_day, count(*) AS n FROM {f} "
        "WHERE {kind} = 'commit' AND {operation} = 'create' "
        "AND {collection} IN ('app.bsky.feed.post', 'app.bsky.feed.repost', 'app.bsky.feed.like') "
        "GROUP BY event, hour_of_day ORDER BY hour_of_day, event"
    ),
    "first posts": (
        f"SELECT {{did}} AS user_id, min({{time}}) AS first FROM {{f}} WHERE {_POSTS} "
        "GROUP BY user_id ORDER BY first, user_id LIMIT 3"
    ),
    "longest activity": (
        f"SELECT {{did}} AS user_id, max({{time}}) - min({{time}}) AS span FROM {{f}} WHERE {_POSTS} "
        "GROUP BY user_id ORDER BY span DESC, user_id LIMIT 3"
    ),
}
"""By what they ask; ``{f}``: the events, the others what a value is called in a form."""
PATHS: Final[Mapping[str, str]] = {
    "kind": "kind",
    "operation": "commit.operation",
    "collection": "commit.collection",
    "did": "did",
    "time": "time_us",
}
"""The values that the queries read, in the order of the sort columns, and where they are in an event."""
COLUMNS: Final = {name: name for name in PATHS} | {"hour": "time // 3600000000 % 24"}
TEXT: Final = (
    {name: f"(data->>'$.{path}')" for name, path in PATHS.items()}
    | {"time": "CAST(data->>'$.time_us' AS BIGINT)"}
    | {"hour": "CAST(data->>'$.time_us' AS BIGINT) // 3600000000 % 24"}
)
SUBCOLUMNS: Final = {name: f"data.{path}" for name, path in PATHS.items()} | {
    "hour": "intDiv(data.time_us, 3600000000) % 24"
}
"""Of ClickHouse's type."""


def spell(query: str, form: Mapping[str, str], *, events: str) -> str:
    """Return the text of a query.

    Args:
        query: Its name.
        form: What the values are called.
        events: What is read from.
    """
    return QUERIES[query].format(f=events, **form)


def is_same(found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> bool:
    """Return whether two answers are the same; ClickHouse has empty text where others have NULL."""

    def plain(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
        return [["" if value is None else str(value) for value in row] for row in rows]

    return plain(found) == plain(expected)
