"""How the rule of promoted columns is switched off. Its schedules have promoters."""

from dataclasses import replace
from typing import Any, Final

from icedb_log.commit.fence import acquire_fence

from icedb_sim.rules.mutations import answers, around, breaks, instead, seen_with

_APPEND: Final = "commit.commit:AppendCommit."
_SHOW: Final = "commit.exchange:ExchangeCommit._show_filled"


def _show_by_old_log(_original: Any, commit: Any, merged: Any) -> Any:
    filled = commit.find_filled(merged)
    return filled, acquire_fence(replace(commit.table, patience_ms=0), "ingest") if filled else None


PROMOTE_RULES: Final = seen_with(
    "promoters:2",
    breaks(
        "S4",
        "a column is shown without the fence of ingest",
        around(_SHOW, lambda _, commit, merged: (commit.find_filled(merged), None)),
        profile="sleepypaths",
        by="test_promotions.py::test_s4_whatever_a_flush_meets_readers_see_complete_columns_alone",
    ),
    breaks(
        "S4",
        "a column is shown by the log as it was before the fence",
        around(_SHOW, _show_by_old_log),
        profile="sleepypaths",
        by="test_promotions.py::test_s4_whatever_a_merge_meets_readers_see_complete_columns_alone",
    ),
    breaks(
        "S4",
        "a run that knows fewer paths than the log commits",
        answers("commit.invariants:require_known_paths", None),
        profile="sleepypaths",
        by="test_promotions.py::test_s4_whatever_a_flush_meets_readers_see_complete_columns_alone",
    ),
    breaks(
        "S4",
        "an append shows what old data files lack",
        instead(_APPEND + "_leave_out_hidden", lambda commit, after, files: dict(after)),
    ),
    breaks(
        "S4",
        "an append by a clock that is behind shows a column at a time before that",
        answers(_APPEND + "_find_shown_ms", 0),
        by="test_promotions.py::test_s4_an_append_by_a_slow_clock_shows_nothing_earlier",
    ),
)
