"""Which rules are switched off, in the order of ``docs/protocol.md``."""

from typing import Final

from icedb_log.testing.simulation_rules_change import CHANGE_RULES
from icedb_log.testing.simulation_rules_log import MERGE_RULES, READ_RULES, WRITE_RULES
from icedb_log.testing.simulation_rules_orphans import ORPHAN_RULES
from icedb_log.testing.simulation_rules_work import INGEST_RULES, JANITOR_RULES

RULES: Final = (*WRITE_RULES, *MERGE_RULES, *CHANGE_RULES, *READ_RULES, *JANITOR_RULES, *ORPHAN_RULES, *INGEST_RULES)
