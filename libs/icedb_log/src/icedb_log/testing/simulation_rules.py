"""Which rules are switched off, in the order of ``docs/protocol.md``."""

from typing import Final

from icedb_log.testing.simulation_rules_change import CHANGE_RULES
from icedb_log.testing.simulation_rules_erase import ERASE_RULES
from icedb_log.testing.simulation_rules_lease import LEASE_RULES
from icedb_log.testing.simulation_rules_log import MERGE_RULES, READ_RULES, WRITE_RULES
from icedb_log.testing.simulation_rules_orphans import ORPHAN_RULES
from icedb_log.testing.simulation_rules_outsider import OUTSIDER_RULES
from icedb_log.testing.simulation_rules_pin import PIN_RULES
from icedb_log.testing.simulation_rules_retention import RETENTION_RULES
from icedb_log.testing.simulation_rules_serving import SERVING_RULES
from icedb_log.testing.simulation_rules_sweeps import SWEEP_RULES
from icedb_log.testing.simulation_rules_trash import TRASH_RULES
from icedb_log.testing.simulation_rules_view import VIEW_RULES
from icedb_log.testing.simulation_rules_work import INGEST_RULES, JANITOR_RULES

RULES: Final = (*WRITE_RULES, *MERGE_RULES, *CHANGE_RULES, *READ_RULES, *JANITOR_RULES, *ORPHAN_RULES, *INGEST_RULES)
"""Those that need nobody but the actors who always play."""

ALL_RULES: Final = (
    *RULES,
    *ERASE_RULES,
    *VIEW_RULES,
    *PIN_RULES,
    *LEASE_RULES,
    *OUTSIDER_RULES,
    *RETENTION_RULES,
    *SERVING_RULES,
    *TRASH_RULES,
    *SWEEP_RULES,
)
