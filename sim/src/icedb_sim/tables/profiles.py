"""Settings of Hypothesis for all tests of the workspace: the ``conftest.py`` at its root loads them."""

import os
from datetime import timedelta
from typing import Final

from hypothesis import HealthCheck, settings

_SLOW_MACHINES = (HealthCheck.too_slow, HealthCheck.data_too_large)
SHARED_FIXTURES: Final = (*_SLOW_MACHINES, HealthCheck.function_scoped_fixture)
"""Checks that a test leaves out whose examples share its fixtures: its list takes the place of the profile's."""
_HANGS_AFTER = timedelta(minutes=2)

FUZZ_SCALE_VARIABLE: Final = "ICEDB_FUZZ_SCALE"
"""How many times as many examples the fuzz tests try as they do in ``make test``."""


def load_profile() -> None:
    """Load the profile that ``HYPOTHESIS_PROFILE`` names.

    ``ci`` (the default) tries the same examples in each run, so that a red test is about the change under test;
    ``explore`` tries many fresh ones. Neither knows a deadline: machines are shared. ``fuzz`` (``make fuzz``) tries
    fresh ones, keeps what fails below ``.hypothesis``, and calls an example that takes minutes a hang.
    """
    settings.register_profile(
        "ci", derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=_SLOW_MACHINES
    )
    settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=_SLOW_MACHINES)
    settings.register_profile(
        "fuzz", deadline=_HANGS_AFTER, max_examples=60, print_blob=True, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def fuzz_examples(count: int) -> settings:
    """Return the settings of a fuzz test: ``count`` examples in ``make test``, more of them in ``make fuzz``.

    Raises:
        ValueError: ``ICEDB_FUZZ_SCALE`` is no number.
    """
    scale = float(os.environ.get(FUZZ_SCALE_VARIABLE, "1"))
    return settings(max_examples=max(1, round(count * scale)), suppress_health_check=list(HealthCheck))
