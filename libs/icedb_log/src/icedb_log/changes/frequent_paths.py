"""Paths that are promoted by themselves: which ones stand in enough of the newest rows.

Decided by whoever merges, from a sample of the newest data files; nothing is counted from one time to the next. What
comes of it is a change of the configuration as ``icedb table alter --promote`` makes one: rule S4 does the rest.
"""

from dataclasses import replace
from heapq import nlargest
from typing import Final

from icedb_log.changes.table_changes import choose_paths, promote_frequent_paths
from icedb_log.commit.table import Table
from icedb_log.jobs import TextSampler
from icedb_log.log.fold import fold
from icedb_log.table.path_shares import PathShare, find_path_shares

MIN_ROWS: Final = 100
"""Fewer rows decide nothing."""
_NEWEST: Final = 16
"""Data files that a sample may be taken of."""


def promote_by_sample(table: Table, sampler: TextSampler) -> Table:
    """Promote what is frequent in the newest rows of a table; return the table with its configuration then.

    Idempotent. Two at once end alike: each takes what the other has promoted for promoted.

    Args:
        table: The table; nothing is read of one that promotes nothing by itself, or has its bound already.
        sampler: Reads the rows.

    Raises:
        Unavailable: The store did not answer.
        IceDBError: As :func:`~icedb_log.changes.table_changes.alter_table_config`.
    """
    config = table.config
    columns = dict.fromkeys(path[0] for path in config.promoted_below)
    if not columns or config.promote_room <= 0:
        return table
    snapshot = fold(table.read_log())
    created = (made_ms for chunk in snapshot.live.chunks for made_ms in chunk.created())
    newest = nlargest(_NEWEST, ((made_ms, place) for place, made_ms in enumerate(created)))
    files = [snapshot.live.marker(place) for _, place in newest]
    shares: list[PathShare] = []
    for column in columns:
        texts = sampler.sample_texts(table, files, column)
        shares += find_path_shares(column, texts) if len(texts) >= MIN_ROWS else ()
    if not choose_paths(config, shares, logged=snapshot.schema):
        return table
    return replace(table, config=promote_frequent_paths(table, shares, clock=table.clock))
