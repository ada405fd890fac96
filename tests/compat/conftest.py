import importlib.util
import sys
from pathlib import Path

import pytest
from icedb_log.testing.profiles import load_profile

load_profile()


@pytest.fixture(scope="session")
def strict_reader():
    """The module strict_reader.py beside this file; test modules cannot import each other."""
    path = Path(__file__).with_name("strict_reader.py")
    spec = importlib.util.spec_from_file_location("icedb_strict_reader", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
