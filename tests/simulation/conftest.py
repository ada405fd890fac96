"""What the tests of the simulation share: where to look first for a schedule that notices a rule switched off."""

import json
from pathlib import Path

import pytest

KNOWN_SEEDS = json.loads((Path(__file__).parent / "known_seeds.json").read_text())


@pytest.fixture(scope="session")
def seeds_for():
    """Return a function from a mutation and a number of schedules to seeds: one that noticed once, then all others.

    Any change of the code may move them. Written by
    ``python -m icedb_sim.simulation --mutations all --seeds 0..399 --remember tests/simulation/known_seeds.json``.
    """

    def find(mutation, count):
        return [*([KNOWN_SEEDS[mutation.name]] if mutation.name in KNOWN_SEEDS else []), *range(count)]

    return find
