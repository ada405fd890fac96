"""How the rules of erasures are switched off. Their schedules have erasers."""

from typing import Any, Final

from icedb_log.erasure.erasure_scope import read_objects

from icedb_sim.rules.mutations import UNASKED, answers, around, breaks, early, inside, instead, keeps, seen_with

_MODULE: Final = "erasure.erasure_run:"
_RUN: Final = _MODULE + "_ErasureRun."
_NO_UNNAMED: Final = answers("erasure.erasure_scope:DataObjects.unnamed", ())


def _look_before_deletion(self: Any, erasure: Any) -> Any:
    if erasure.state != "requested":
        return UNASKED
    return read_objects(self._table)


def _landed_if_written_down(original: Any, run: Any, *args: Any, **kwargs: Any) -> Any:
    found = original(run, *args, **kwargs)
    return run if run.has_landed is not None else found.model_copy(update={"has_landed": True})


ERASE_RULES: Final = seen_with(
    "erasers:3",
    breaks(
        "E1",
        "a record that changed since the last look is completed all the same",
        around(_MODULE + "_unless_changed", lambda original, now, seen, update: original(now, now, update)),
        profile="sleepyproofs",
        by="test_erasure_faults.py::test_what_another_worker_finds_after_a_listing_is_not_gone_by_it",
    ),
    breaks(
        "E1",
        "an erasure that has ended is changed",
        answers("holds.erasures:_is_final", False),
        by="test_erasure_requests.py::test_e1_what_has_ended_is_never_changed",
    ),
    breaks(
        "E2",
        "batches that were accepted before the request are not waited for",
        answers(_MODULE + "count_staged_until", 0),
    ),
    breaks(
        "E3",
        "a deletion that was written down is taken for one that landed",
        around("erasure.erasure_run:_with_fate", _landed_if_written_down),
    ),
    breaks("E4", "dead data files do not have to go", answers("erasure.erasure_scope:DataObjects.dead", ())),
    breaks(
        "E4",
        "the objects are listed before the deletion",
        early(_RUN + "advance", _MODULE + "read_objects", _look_before_deletion),
    ),
    keeps(
        "E4",
        "unnamed data objects do not have to go after the deletion",
        inside(_RUN + "_note_objects", _NO_UNNAMED),
    ),
    breaks(
        "E5",
        "log files may name what is gone",
        instead(
            _MODULE + "_find_left",
            lambda erasure, present, named: {
                key for key in erasure.objects if key in present and (key in erasure.dead or key not in named)
            },
        ),
        by="test_erasures.py::test_statistics_in_the_log_are_waited_for",
    ),
    breaks(
        "E5",
        "unnamed data objects of the last listing do not have to go",
        inside(_RUN + "_look", _NO_UNNAMED),
        profile="sleepyuploads",
        by="test_erasures.py::test_an_orphan_that_appears_after_the_deletion_is_found_by_the_last_look",
    ),
    breaks(
        "E5",
        "what nobody named has to go also when it was committed since",
        instead(
            _MODULE + "_find_left",
            lambda erasure, present, named: {
                key for key in erasure.objects if key in present or (key in erasure.dead and key in named)
            },
        ),
        by="test_erasures.py::test_an_unnamed_file_at_the_deletion_that_is_committed_later_is_not_covered",
    ),
)
