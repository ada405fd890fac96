"""Which rules are switched off, in the order of ``docs/protocol.md``."""

from typing import Final

from icedb_sim.rules.clean import CLEAN_RULES, HOLD_RULES
from icedb_sim.rules.erase import ERASE_RULES
from icedb_sim.rules.feed import FOLLOWER_RULES, VIEW_RULES
from icedb_sim.rules.ingest import (
    GROUP_RULES,
    IMPORT_RULES,
    INGEST_RULES,
    OUTSIDER_RULES,
    POISON_RULES,
    REUSE_RULES,
    SIZE_RULES,
)
from icedb_sim.rules.promote import PROMOTE_RULES
from icedb_sim.rules.publish import PUBLISH_RULES
from icedb_sim.rules.read import READ_RULES, SERVING_RULES
from icedb_sim.rules.trash import TRASH_RULES
from icedb_sim.rules.write import CHANGE_RULES, FENCE_RULES, MERGE_RULES, RETENTION_RULES, WRITE_RULES

RULES: Final = (*WRITE_RULES, *MERGE_RULES, *CHANGE_RULES, *READ_RULES, *CLEAN_RULES, *INGEST_RULES)
"""Those that need nobody but the actors who always play."""

ALL_RULES: Final = (
    *RULES,
    *(
        *FENCE_RULES,
        *RETENTION_RULES,
        *SERVING_RULES,
        *HOLD_RULES,
        *REUSE_RULES,
        *POISON_RULES,
        *SIZE_RULES,
        *GROUP_RULES,
        *IMPORT_RULES,
        *OUTSIDER_RULES,
    ),
    *(*FOLLOWER_RULES, *VIEW_RULES, *PROMOTE_RULES, *PUBLISH_RULES, *TRASH_RULES, *ERASE_RULES),
)

TEST_OF_RULE: Final[dict[str, str]] = {rule.name: rule.by for rule in ALL_RULES if rule.by}
"""By name of the rule, the test that notices it, as pytest has it. Every other rule has to be missed by schedules."""
