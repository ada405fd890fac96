import pytest
from icedb_sim.tables.profiles import load_profile
from icedb_sim.tables.small_table import SmallTable

load_profile()


@pytest.fixture
def table():
    """A table in memory; modules that need another one have a fixture of this name."""
    return SmallTable()
