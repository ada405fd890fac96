"""How the rules of publications are switched off: P1 to P5, and what an erasure takes back of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from icedb_log.publish.head import read_publications

from icedb_sim.rules.clean import holds_without, read_all_holds
from icedb_sim.rules.mutations import (
    answers,
    around,
    breaks,
    careless,
    early,
    instead,
    is_now,
    seen_with,
    with_arguments,
    with_store,
)

_PUBLISH: Final = "publish.publications:publish"
_MAKE: Final = "publish.publications:_Maker.make"
_FIND_ENDS: Final = "publish.head:Publications.find_ends"
_SWEEP: Final = "clean.publication_ending:_plan_sweep"


def _end_when_lost(original: Any, found: Any, *, data_grace_ms: int) -> Any:
    ends, head = original(found, data_grace_ms=data_grace_ms), found.head
    return [
        (record, 0 if head and record.name and record.name.sequence > head.sequence else end_ms)
        for record, end_ms in ends
    ]


def _keep_order(files: Sequence[Any]) -> Iterator[Any]:
    yield from files


def _find_no_rest(original: Any, live: Any, current: set[str], now_ms: int) -> Any:
    return replace(original(live, current, now_ms), added={}, removed={})


def _need_only_oldest(original: Any, table: Any, found: Any, lasting: Sequence[Any]) -> Any:
    return original(table, found, sorted(lasting, key=lambda each: each.name.sequence if each.name else 0)[:1])


PUBLISH_RULES: Final = seen_with(
    "publishers:2",
    breaks("P1", "a head is written over whatever is there", with_store(_MAKE, careless), profile="sleepypublishers"),
    breaks(
        "P1",
        "a chain that begins anew has the id of another one",
        around("publish.publications:_find_head", lambda original, table: replace(original(table), chain="0" * 32)),
        by="test_publications.py::test_p1_a_chain_that_is_lost_begins_anew_with_other_ids",
    ),
    breaks(
        "P1",
        "a head out of a backup is gone on from",
        answers("clean.publication_ending:_begin_chain", False),
        by="test_publication_ends.py::test_p5_a_head_out_of_a_backup_begins_a_new_chain_when_its_records_are_older",
    ),
    breaks(
        "P2",
        "objects are there before the record",
        around(
            "publish.publications:_Maker._put_record",
            lambda original, maker: (original(maker), maker._table.store.delete([maker._record_key]))[0],
        ),
    ),
    breaks("J4", "publications are ignored", holds_without("publication")),
    breaks(
        "J4",
        "publications are read before the log",
        early(
            "clean.vacuum:vacuum_table",
            "holds.stored_holds:HoldReader.read",
            read_all_holds,
        ),
        profile="sleepypublishers",
    ),
    breaks(
        "J4",
        "a publication is proven by a log that was read before its record was there",
        early(_PUBLISH, "log.reader:LogReader.read", lambda table: table.read_log()),
        by="test_publications.py::test_j4_the_record_is_there_before_the_log_is_read",
    ),
    breaks(
        "J4",
        "a publication is not proven",
        answers("publish.publications:find_certain_ms", 0),
        by="test_publications.py::test_j4_a_publisher_that_slept_before_its_record_tells_no_state_that_may_be_going",
    ),
    breaks("J4", "files go as soon as a publication has left", with_arguments(_FIND_ENDS, data_grace_ms=0)),
    breaks("J4", "a publication has left when the next one is begun", is_now("publish.head:NUMBERS_LATER", 1)),
    breaks(
        "J4",
        "one in the making holds nothing",
        around(_FIND_ENDS, _end_when_lost),
        by="test_publication_ends.py::test_j4_a_first_publication_in_the_making_holds_until_it_is_taken_out",
    ),
    breaks(
        "J4",
        "nobody retires what nobody asks for",
        answers("clean.vacuum:retire_idle", False),
    ),
    breaks(
        "P4",
        "log files are told by name alone",
        instead("publish.steps:_in_order", _keep_order),
        by="test_publish_steps.py::test_p4_no_merge_comes_before_its_inputs_whatever_its_clock_said",
    ),
    breaks(
        "P4",
        "what no log file explains is left out",
        around("publish.steps:_find_rest", _find_no_rest),
        by="test_publish_steps.py::test_p4_what_no_log_file_explains_is_one_step_more",
    ),
    breaks(
        "P4",
        "a first publication tells states of which log files are gone",
        answers("publish.steps:_last_uncertain", -1),
        by="test_publish_steps.py::test_p4_a_first_publication_tells_no_state_that_may_lack_rows",
    ),
    breaks("P5", "what others refer to is swept", answers("clean.publication_ending:_find_needed", frozenset())),
    breaks(
        "P5",
        "what the oldest record names is all that is needed",
        around("clean.publication_ending:_find_needed", _need_only_oldest),
        by="test_publication_ends.py::test_p5_what_one_that_lost_does_not_name_stays_when_another_needs_it",
    ),
    breaks(
        "P5",
        "records are listed before objects",
        early(
            _SWEEP, "clean.publication_ending:read_publications", lambda table: read_publications(table, is_whole=True)
        ),
        by="test_publication_ends.py::test_p5_objects_are_listed_before_records",
    ),
    breaks(
        "E5",
        "an erasure withdraws nothing",
        answers("erasure.erasure_run:withdraw_publications", None),
        by="test_publication_ends.py::test_e5_an_erasure_takes_back_what_was_published_and_waits_until_it_is_gone",
    ),
    breaks(
        "E5",
        "an erasure is complete while what was published is there",
        answers("erasure.erasure_run:count_withdrawn", 0),
        by="test_publication_ends.py::test_e5_an_erasure_takes_back_what_was_published_and_waits_until_it_is_gone",
    ),
)
