"""How the rules of dropped tables are switched off. Their schedules have droppers."""

from typing import Any, Final

from icedb_log.table.stored_config import encode_table_config, load_place

from icedb_sim.rules.mutations import answers, around, breaks, is_now, seen_with


def _create_in_place(original: Any, table: Any, config: Any) -> Any:
    """Create a table in place of the mark of a purged one."""
    found = load_place(table)
    mark = None if found.config is None else found.config.dropped
    if found.info is None or mark is None or mark.state != "purged":
        return original(table, config)
    table.store.put_if_match(table.paths.config_key, encode_table_config(config), etag=found.info.etag)
    return table


def _is_over_at_once(original: Any, table: Any, config: Any, mark: Any, **kwargs: Any) -> Any:
    return original(table, config, mark.model_copy(update={"keep_ms": 0}), **kwargs)


def _leave_no_trace(original: Any, config: Any, drop_id: Any) -> Any:
    del drop_id
    return original(config, "")


TRASH_RULES: Final = seen_with(
    "droppers:2",
    breaks(
        "T1",
        "an undrop leaves no trace",
        around("trash.drop:_taken_back", _leave_no_trace),
        by="test_trash.py::test_t1_no_state_of_the_table_comes_back",
    ),
    breaks(
        "T1",
        "a drop that was taken back comes again",
        answers("trash.drop:_was_taken_back", False),
        by="tests/simulation/test_found_by_simulation.py::test_t1_a_drop_that_was_taken_back_meanwhile_does_not_come_back",
    ),
    breaks("T1", "a table is purged at once", around("trash.purge:_look_at_trash", _is_over_at_once)),
    breaks(
        "T1",
        "a table stays in the trash for the grace period exactly",
        is_now("trash.drop:CONFIG_CACHE_TTL_MS", 0),
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
    breaks(
        "T3",
        "a purge by age waits for nobody",
        answers("clean.holds:find_claims", ()),
        answers("clean.holds:find_claims_on_data", ()),
        by="test_purge.py::test_t3_it_waits_for_whoever_needs_the_table",
    ),
    breaks(
        "T4",
        "the next table of a purged name lies under the same prefix",
        around("table.stored_config:create_table", _create_in_place),
    ),
    breaks(
        "T4",
        "a name is free before its table is purged",
        answers("table.stored_config:_require_purged", None),
        by="test_purged_names.py::test_t4_a_name_is_free_when_its_table_is_purged_and_the_next_one_lies_elsewhere",
    ),
    breaks(
        "T5",
        "nobody looks once more for what came late",
        answers("trash.purge:_after", {"state": "purged", "is_final": True}),
        by="test_purged_names.py::test_t5_what_comes_late_is_deleted_when_nothing_sleeps_any_more",
    ),
)
