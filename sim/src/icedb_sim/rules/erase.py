"""How the rules of erasures are switched off. Their schedules have erasers."""

from typing import Any, Final

from icedb_log.erasure.erasure_scan import read_objects

from icedb_sim.rules.mutations import UNASKED, answers, around, breaks, early, inside, instead, keeps, seen_with

_MODULE: Final = "erasure.erasure_run:"
_RUN: Final = _MODULE + "_ErasureRun."
_NO_UNNAMED: Final = answers("erasure.erasure_scan:DataObjects.unnamed", ())


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
        around(_MODULE + "_completed", lambda original, now, seen, *times: original(now, now, *times)),
        profile="sleepyuploads",
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
    breaks("E4", "dead data files are not searched", answers("erasure.erasure_scan:DataObjects.dead", ())),
    breaks(
        "E4",
        "dead data files are searched before the deletion",
        early(_RUN + "advance", _MODULE + "read_objects", _look_before_deletion),
    ),
    keeps(
        "E4",
        "unnamed data objects are not searched after the deletion",
        inside(_RUN + "_find_targets", _NO_UNNAMED),
    ),
    breaks(
        "E5",
        "log files may name what is gone",
        instead(
            _MODULE + "_find_open",
            lambda erasure, gone, named: {target.key for target in erasure.targets} - gone,
        ),
    ),
    breaks(
        "E5",
        "what others added to the record after the listing is taken for gone",
        instead(
            _MODULE + "_find_gone",
            lambda erasure, known, present: {target.key for target in erasure.targets} - present.keys(),
        ),
        profile="sleepyproofs",
        by="test_erasure_faults.py::test_what_another_worker_finds_after_a_listing_is_not_gone_by_it",
    ),
    breaks(
        "E6",
        "unnamed data objects are not searched in the end",
        inside(_RUN + "_look_at_all", _NO_UNNAMED),
        profile="sleepyuploads",
        by="test_erasures.py::test_an_orphan_that_appears_after_the_deletion_is_found_by_the_last_look",
    ),
    breaks(
        "E6",
        "what the last look finds is never looked for again",
        instead(_MODULE + "_found_nothing", lambda erasure: bool(erasure.suspects)),
        profile="sleepyuploads",
    ),
)
