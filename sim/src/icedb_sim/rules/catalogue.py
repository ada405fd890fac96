"""Which rules are switched off, in the order of ``docs/protocol.md``."""

from dataclasses import replace
from typing import Final

from icedb_sim.rules.clean import CLEAN_RULES, HOLD_RULES
from icedb_sim.rules.erase import ERASE_RULES
from icedb_sim.rules.feed import FOLLOWER_RULES, VIEW_RULES
from icedb_sim.rules.ingest import INGEST_RULES, OUTSIDER_RULES, REUSE_RULES
from icedb_sim.rules.mutations import Mutation
from icedb_sim.rules.read import READ_RULES, SERVING_RULES
from icedb_sim.rules.trash import TRASH_RULES
from icedb_sim.rules.write import CHANGE_RULES, FENCE_RULES, MERGE_RULES, RETENTION_RULES, WRITE_RULES

MOOD_OF_RULE: Final = {
    "old work is committed all the same": "sleepyintents",
    "the time is looked at before the intent": "sleepyintents",
    "no second look after a listing of many pages": "sleepypages",
    "a dead log file behind the listing is overlooked": "sleepypages",
    "log files are read without If-Match": "sleepyfetchers",
    "the horizon ignores log files that are gone without a strip": "losses",
    "a tombstone's age is its committer's word": "skews",
    "a tombstone's age is its proof of landing alone": "skews",
    "a strip replaces whatever is there": "sleepyjanitors",
    "a lease believes the time that a committer gave its tombstones": "skews",
    "leases are read before the log": "sleepylookers",
    "the log is read before the data files are listed, and one sighting is enough": "sleepyjanitors",
    "commits under way are not settled, and one sighting is enough": "sleepyputs",
    "commits under way are settled after the log was read, and one sighting is enough": "sleepysettlers",
    "a data file counts as named only while it is live, and one sighting is enough": "longgraces",
    "log files go although a batch that they refused is still staged": "sleepyreasons",
    "the reason of bad rows is written without a look at the fence": "sleepyreasons",
    "the reason of bad rows is written over whatever is there": "sleepyreasons",
    "staging is listed before the log is read": "sleepycopies",
    "a removal commits what it planned before the fence": "sleepychangers",
    "the log is read before the fence is taken": "sleepyoutsiders",
    "files may be of any age": "sleepyoutsiders",
    "a record that changed since the last look is completed all the same": "sleepyuploads",
    "unnamed data objects are not searched in the end": "sleepyuploads",
    "what the last look finds is never looked for again": "sleepyuploads",
    "what others added to the record after the listing is taken for gone": "sleepyproofs",
    "a merge does not carry what the view has taken": "sleepymergers",
    "a deletion rewrites what it found before the fence": "sleepychangers",
    "a new tombstone claims to have landed when its input was made": "sleepyputs",
    "an id may lie in the future": "hastyproducers",
    "what a flush leaves out for its size is cleared from staging": "sizedflushes",
    "pins are read before the log": "sleepypinners",
    "a pin is proven by a log that was read before it was there": "sleepypinners",
    "the source is listed before the fence is taken": "sleepyfeeders",
    "the janitor goes by the configuration that it read first": "sleepypurgers",
    "a name is free although purgers may still delete": "sleepypurgers",
    "a name is free as soon as its table is purged": "sleepypurgers",
}
"""In which mood a schedule misses a rule most, for those that few schedules miss."""


def _with_moods(rules: tuple[Mutation, ...]) -> tuple[Mutation, ...]:
    return tuple(replace(rule, mood=MOOD_OF_RULE.get(rule.name, "")) for rule in rules)


RULES: Final = _with_moods((*WRITE_RULES, *MERGE_RULES, *CHANGE_RULES, *READ_RULES, *CLEAN_RULES, *INGEST_RULES))
"""Those that need nobody but the actors who always play."""

ALL_RULES: Final = (
    *RULES,
    *_with_moods((*FENCE_RULES, *RETENTION_RULES, *SERVING_RULES, *HOLD_RULES, *REUSE_RULES, *OUTSIDER_RULES)),
    *_with_moods((*FOLLOWER_RULES, *VIEW_RULES, *TRASH_RULES, *ERASE_RULES)),
)
