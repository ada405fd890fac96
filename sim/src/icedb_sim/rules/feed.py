"""How the rules of views and of followers are switched off. Their schedules have feeders, and outsiders."""

from dataclasses import replace
from typing import Any, Final

from icedb_log.errors import NotFound
from icedb_log.feed.position import find_living
from icedb_log.feed.views import find_unfed, list_appends
from icedb_log.jobs import SourceCommit
from icedb_log.keys import log_name
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import fold

from icedb_sim.rules.mutations import Other, answers, around, breaks, early, inside, instead, is_now, seen_with
from icedb_sim.rules.write import merge_log

_FOLLOWER: Final = "feed.follower:Follower."


def _list_source_first(original: Any, view: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
    seen = source.read_heads()
    return original(view, Other(source, read_heads=lambda: seen), *args, **kwargs)


def _need_appends(original: Any, files: Any, registration: Any, state: Any) -> frozenset[str]:
    if registration.state == "pending":
        return frozenset(find_unfed(files, registration, state.names))
    return original(files, registration, state)  # type: ignore[no-any-return]


VIEW_RULES: Final = seen_with(
    "feeders:2",
    breaks(
        "V1",
        "a feed names only what it has taken itself",
        instead("feed.feeds:advance", lambda taken, files, *, decided: tuple(sorted(decided))),
    ),
    breaks(
        "V1",
        "a merge does not carry what the view has taken",
        merge_log(lambda log, *_, **__: replace(log, feed=None)),
        profile="sleepymergers",
        by="test_feeds.py::test_what_was_taken_outlives_merges_and_vacuums_of_the_view",
    ),
    breaks(
        "V2",
        "the source is listed before the fence is taken",
        around("feed.feeds:feed_view", _list_source_first),
        profile="sleepyfeeders",
        by="test_feed_races.py::test_a_feed_that_slept_since_before_its_fence_forgets_nothing_that_others_took_meanwhile",
    ),
    breaks(
        "V3",
        "the source is listed before the registration is there",
        early("feed.views:register_view", "feed.views:list_appends", list_appends),
        by="test_feeds.py::test_v3_what_is_there_when_the_registration_is_pending_is_skipped_and_all_later_is_fed",
    ),
    breaks(
        "V1",
        "a feed does not say how far its backfill is",
        instead("feed.feeds:advance_backfill", lambda backfilled, *, decided: (*backfilled,)),
        by="test_view_backfill.py::test_a_view_begins_with_the_rows_of_its_source_and_goes_on_with_its_commits",
    ),
    breaks(
        "V3",
        "what a view begins with is not what it skips",
        instead("feed.views:find_living", lambda files: find_living(tuple(files)[:-1])),
        by="test_view_backfill.py::test_a_view_begins_with_the_rows_of_its_source_and_goes_on_with_its_commits",
    ),
    breaks("V4", "the janitor does not ask for views", answers("clean.vacuum:find_wanted", frozenset())),
    breaks(
        "V4",
        "what says the rows that a view begins with goes as if nobody needed it",
        answers("feed.views:has_unfilled", False),
        by="test_view_backfill.py::test_until_the_view_is_filled_the_log_files_that_say_its_rows_stay",
    ),
    breaks(
        "V4",
        "merges go while a view that begins with their rows is registered",
        around("feed.views:find_needed", _need_appends),
        by="test_view_backfill.py::test_a_merge_that_the_view_begins_with_does_not_go_before_the_registration_says_so",
    ),
    breaks(
        "V5",
        "reasons that are not written down are forgotten by the next feed",
        inside("feed.feeds:_FeedRun.feed", answers("feed.feeds:find_unrecorded", ())),
        by="test_feeds.py::test_a_refusal_whose_record_was_not_written_is_recorded_by_the_next_feed",
    ),
    breaks(
        "V6",
        "commits come before the backfill in every feed",
        is_now("feed.feeds:BACKFILL_TURN", 1 << 60),
        by="test_view_backfill.py::test_v6_a_source_with_ever_more_commits_does_not_hold_the_backfill_up",
    ),
)


def _name_only_new(original: Any, follower: Any, start: Any, **kwargs: Any) -> Any:
    reached = original(follower, start, **kwargs)
    return reached if reached is start else replace(reached, taken=tuple(sorted({*reached.taken} - {*start.taken})))


def _call_it_young(original: Any, follower: Any, start: Any, rebuilt: str | None) -> None:
    original(follower, replace(start, read_ms=1 << 60), rebuilt)


def _believe_any_lease(original: Any, follower: Any, start: Any, rebuilt: str | None) -> None:
    original(follower, start if start.lease_id is None else replace(start, read_ms=1 << 60), rebuilt)


def _take_any_lease(original: Any, follower: Any, since_ms: int) -> Any:
    return original(follower, 1 << 60)


def _deliver_seals(original: Any, table: Any, key: str, *, etag: str | None = None) -> SourceCommit:
    try:
        return original(table, key, etag=etag)  # type: ignore[no-any-return]
    except NotFound:
        seal = decode_log_file(key, table.store.get(key).body)
        return SourceCommit(log_name(key), seal.time_ms, ())


FOLLOWER_RULES: Final = seen_with(
    "outsiders:2",
    breaks("L1", "a position names only what it has taken itself", around(_FOLLOWER + "look", _name_only_new)),
    breaks("L2", "a position never grows too old", around(_FOLLOWER + "_require_unbroken", _call_it_young)),
    breaks(
        "L2",
        "a lease that has ended counts",
        around(_FOLLOWER + "_require_unbroken", _believe_any_lease),
        by="test_follower.py::test_a_lease_that_ended_is_no_lease",
    ),
    breaks(
        "L2",
        "what a position leaves behind is as young as its look",
        instead("feed.follower:_find_since", lambda log, taken: log.store_now_ms),
        profile="sleepyfollowers",
    ),
    breaks(
        "L2",
        "a position goes by the youngest lease, whatever it leaves behind",
        around(_FOLLOWER + "_find_lease", _take_any_lease),
        by="test_follower.py::test_what_a_budget_leaves_is_held_as_it_was_before_or_said_to_be_lost",
    ),
    breaks(
        "L2",
        "a seal in the place of an append is an append without rows",
        around("feed.follower:read_append", _deliver_seals),
        by="test_follower.py::test_a_seal_in_the_place_of_a_log_file_is_no_append_without_rows",
    ),
    breaks(
        "L3",
        "the first state is whatever is live when its next piece is read",
        instead(_FOLLOWER + "_read_state", lambda follower, names: tuple(fold(follower._table.read_log()).live)),
    ),
)
