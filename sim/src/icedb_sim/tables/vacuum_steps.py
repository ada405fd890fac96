"""What tests of vacuums have in common: a table with something to delete, a rival, and what must be left."""

from icedb_sim.tables.small_table import SmallTable


def make_dead_table() -> SmallTable:
    """Return a table of two appends, merged, both grace periods over."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.merge()
    table.clock.advance(table.config.data_grace_ms)
    return table


def rival_of(table: SmallTable) -> SmallTable:
    """Return somebody else who works on the same table, whose requests never fail."""
    rival = SmallTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    return rival


def assert_clean(table: SmallTable) -> None:
    """Assert that only what is live is there."""
    assert table.keys(table.paths.data_prefix) == [marker.path for marker in table.snapshot().live]
    snapshot = table.snapshot()
    assert (snapshot.tombstoned_ms, snapshot.log_tombstoned_ms) == ({}, {})
