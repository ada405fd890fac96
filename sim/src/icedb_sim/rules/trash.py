"""How the rules of dropped tables are switched off. Their schedules have droppers."""

from typing import Any, Final

from icedb_log.clean.purge import PurgeResult
from icedb_log.table.stored_config import read_table_config

from icedb_sim.rules.mutations import Switch, answers, around, breaks, is_now, seen_with

_RUN: Final = "clean.purge:PurgeRun."
_REQUIRE_PURGED: Final = "table.stored_config:require_purged"


def _by_mark(**other: object) -> Switch:
    """Let a name be asked for as if the mark of its dropped table said something else."""

    def ask(original: Any, config: Any, info: Any, **kwargs: Any) -> None:
        original(config.model_copy(update={"dropped": config.dropped.model_copy(update=other)}), info, **kwargs)

    return around(_REQUIRE_PURGED, ask)


def _without_grace(original: Any, config: Any, info: Any, **kwargs: Any) -> None:
    original(config.model_copy(update={"log_grace_ms": 0}), info, **kwargs)


def _is_over_at_once(original: Any, table: Any, config: Any, mark: Any, **kwargs: Any) -> Any:
    return original(table, config, mark.model_copy(update={"keep_ms": 0}), **kwargs)


def _is_never_looked_at_again(original: Any, *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    return PurgeResult("purged") if isinstance(found, dict) else found


def _leave_no_trace(original: Any, table: Any, config: Any, **kwargs: Any) -> None:
    original(table, config.model_copy(update={"undropped": ""}), **kwargs)


TRASH_RULES: Final = seen_with(
    "droppers:2",
    breaks(
        "T1",
        "an undrop leaves no trace",
        around("clean.drop:replace_config", _leave_no_trace),
        by="test_trash.py::test_t1_no_state_of_the_table_comes_back",
    ),
    breaks(
        "T1",
        "a drop that was taken back comes again",
        answers("clean.drop:_was_taken_back", False),
        by="tests/simulation/test_found_by_simulation.py::test_t1_a_drop_that_was_taken_back_meanwhile_does_not_come_back",
    ),
    breaks("T1", "a table is purged at once", around("clean.purge:_look_at_trash", _is_over_at_once)),
    breaks(
        "T1",
        "a table stays in the trash for the grace period exactly",
        is_now("clean.drop:BELIEVED_MS", 0),
        by="tests/simulation/test_found_by_simulation.py::test_t1_files_that_a_reader_was_given_by_who_remembers_the_table_stay_for_their_grace_period",
    ),
    breaks(
        "T1",
        "a configuration is believed without a look after the log",
        answers("serving.table_cache:CachedTable._may_be_gone", False),
        by="services/snapshot/tests/test_snapshot_table_cache.py::test_t5_a_read_that_sleeps_before_its_listing_does_not_serve_what_a_purge_left",
    ),
    breaks(
        "T1",
        "seals alone count as a log",
        answers("serving.table_cache:_is_left_by_purge", False),
        by="services/snapshot/tests/test_snapshot_table_cache.py::test_t5_a_purged_table_is_not_an_empty_one_to_who_knows_it_as_empty",
    ),
    breaks("T4", "the fences are not taken", is_now("clean.purge:ROLES", ())),
    breaks(
        "T4",
        "the janitor goes by the configuration that it read first",
        around(
            "table.stored_config:require_same_table",
            lambda original, table, config: original(table, read_table_config(table)),
        ),
        profile="sleepypurgers",
        by="test_purge_races.py::test_t4_the_janitor_never_goes_by_the_grace_periods_of_the_old_table",
    ),
    breaks("T5", "the mark is not read after the listing", answers(_RUN + "_require_purging", None)),
    breaks("T5", "who deletes names that can come again does not say so", answers(_RUN + "_join", None)),
    breaks(
        "T6",
        "a name is free although purgers may still delete",
        _by_mark(purgers=()),
        profile="sleepypurgers",
        by="test_purge_races.py::test_t5_a_batch_that_is_sent_again_into_the_new_table_is_not_deleted_by_a_purge_of_the_old_one",
    ),
    breaks(
        "T6",
        "a name is free as soon as its table is purged",
        around(_REQUIRE_PURGED, _without_grace),
        profile="sleepypurgers",
        by="tests/simulation/test_found_by_simulation.py::test_t6_the_name_is_not_free_while_a_flush_of_the_old_table_may_delete_what_is_sent_again",
    ),
    breaks("T6", "a name is free before its table is purged", _by_mark(state="purged")),
    breaks(
        "T6",
        "nobody looks once more for what came late",
        around("clean.purge:_look_at_purged", _is_never_looked_at_again),
    ),
    breaks("F4", "a purge deletes seals", answers(_RUN + "_is_young_seal", False)),
)
