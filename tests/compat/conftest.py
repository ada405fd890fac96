import importlib.util
import sys
from pathlib import Path

import pytest
from icedb_log.log.fold import fold


def _load(name):
    """Return the module of this name beside this file; test modules cannot import each other."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"icedb_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def strict_reader():
    """The module strict_reader.py."""
    return _load("strict_reader")


@pytest.fixture(scope="session")
def v3_table():
    """The module v3_table.py."""
    return _load("v3_table")


@pytest.fixture
def table(v3_table, tmp_path):
    """A table of the original wire."""
    return v3_table.V3Table(tmp_path)


@pytest.fixture
def require_alike(strict_reader, table):
    """Return a function that reads the table strictly, and holds it against our own reader."""

    def check(numbers):
        objects = [(key, each.body) for key, each in table.store.dump("events/_log").items()]
        strict = strict_reader.read_strict("events", objects)
        assert strict.live == {marker.path for marker in fold(table.reader().read()).live}
        assert table.numbers_in(*strict.live) == sorted(numbers)
        assert table.numbers() == sorted(numbers)

    return check
