import pytest
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table():
    """A table in memory; modules that need another one have a fixture of this name."""
    return SmallTable()
