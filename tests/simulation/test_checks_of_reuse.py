"""What the simulation says of other content under a known id (I8): here of an id that was made from a key (I7)."""

from types import SimpleNamespace

import pytest
from icedb_log.batch_ids import make_keyed_id
from icedb_log.content import hash_content
from icedb_log.ingest.quarantine import conflict_name, payload_key, reason_key
from icedb_sim.simulation.reuse import FORMAT, ReuseScenario
from icedb_sim.simulation.settings import PATHS
from icedb_sim.simulation.world import Violation

BODY = b'[{"id": 1}]'
FIRST, LATE, OTHER = (make_keyed_id(key, 1_700_000_000_000 + ms) for key, ms in (("a", 0), ("a", 500), ("b", 0)))


@pytest.mark.parametrize(("decided", "is_kept"), [(FIRST, True), (LATE, True), (OTHER, False)])
def test_what_goes_is_kept_under_an_id_of_its_key(decided, is_kept):
    entry = conflict_name(decided, hash_content(BODY, FORMAT))
    kept = {payload_key(PATHS, entry, BODY, FORMAT, what="batch"), reason_key(PATHS, entry)}
    model = SimpleNamespace(others={LATE: BODY}, batches=dict.fromkeys((FIRST, LATE, OTHER)))
    scenario = ReuseScenario(SimpleNamespace(model=model, exists=kept.__contains__))
    key = f"{PATHS.staging_prefix}{LATE}.{FORMAT}"
    if is_kept:
        scenario.on_delete(key)
    else:
        with pytest.raises(Violation, match="is nowhere else"):
            scenario.on_delete(key)
