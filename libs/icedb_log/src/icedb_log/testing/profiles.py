"""Settings of Hypothesis that every test suite of the workspace loads from its ``conftest.py``."""

import os

from hypothesis import HealthCheck, settings

_SLOW_MACHINES = (HealthCheck.too_slow, HealthCheck.data_too_large)


def load_profile() -> None:
    """Load the profile that ``HYPOTHESIS_PROFILE`` names.

    ``ci`` (the default) tries the same examples in each run, so that a red test is about the change under test;
    ``explore`` tries many fresh ones. Neither knows a deadline: machines are shared.
    """
    settings.register_profile(
        "ci", derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=_SLOW_MACHINES
    )
    settings.register_profile("explore", deadline=None, max_examples=2000, suppress_health_check=_SLOW_MACHINES)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
