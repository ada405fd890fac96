"""Many conditions by one query: a query for each takes most of its time to begin."""


def ask_at_once(execute, source, wheres):
    """Return the sorted ``n`` of the rows for each condition.

    Args:
        execute: Runs SQL, and returns what has ``fetchall``.
        source: A table or function, in SQL.
        wheres: The conditions: a branch of one query each, so that DuckDB pushes each of them down.
    """
    branches = (f"SELECT {place}, n FROM {source} WHERE {where}" for place, where in enumerate(wheres))
    found = [[] for _ in wheres]
    for place, n in execute(" UNION ALL ".join(branches)).fetchall():
        found[place].append(n)
    return [sorted(each) for each in found]
