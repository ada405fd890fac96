"""Steps from the log: all of them together lead to what the fold says is live, whatever the log files say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.holds.guards import find_data_deaths
from icedb_log.keys import log_name
from icedb_log.log.fold import fold
from icedb_log.publish import steps as steps_module
from icedb_log.publish.steps import MAX_STEPS, find_history
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.tables.log_views import data, dead, kill, listed, live, log_key, view

NOW_MS = 1_000_000
names = st.sampled_from("uvwxyz")


def history(seen, *, before=None, before_digest=None, known=(), since_ms=0):
    return find_history(
        seen,
        fold(seen).live,
        find_data_deaths(seen),
        before=before,
        before_digest=before_digest,
        known=frozenset(known),
        since_ms=since_ms,
    )


def replay(told, before=()):
    """Return the paths after each step; each adds what is not there, and removes what is."""
    current, states = set(before), []
    for step in told.steps:
        added, removed = {marker.path for marker in step.added}, set(step.removed)
        assert len(step.added) == len(added)
        assert added or removed
        assert removed <= current
        assert not added & current
        current = current - removed | added
        states.append(frozenset(current))
    return states


def said(told):
    return [(s.operation, s.log_name, [m.path for m in s.added], sorted(s.removed)) for s in told.steps]


@st.composite
def log_files(draw):
    """A log file of which nothing needs to fit to the others."""
    number, merged = draw(st.integers(1, 12)), draw(st.booleans())
    gone, alive = draw(st.sets(names, max_size=4)), draw(st.sets(names, max_size=4))
    return listed(
        number,
        *(live(n, rows=draw(st.sampled_from([None, 0, 1, 2]))) for n in sorted(alive - gone)),
        *(dead(n, draw(st.integers(1, 9))) for n in sorted(gone)),
        kills=[kill(other, number) for other in sorted(draw(st.sets(st.integers(1, 12), max_size=3)))],
        merged=merged,
        change=draw(st.sampled_from([None, "merge", "delete"])),
    )


@st.composite
def views(draw):
    return view(*{file.key: file for file in draw(st.lists(log_files(), max_size=8))}.values())


@settings(max_examples=150, deadline=None)
@given(st.lists(views(), min_size=1, max_size=4), st.sampled_from([0, 3, 1_000, NOW_MS]), st.booleans())
def test_p4_the_steps_of_publication_after_publication_lead_to_what_is_live(seen, since_ms, knows_digest):
    before, known, digest = None, frozenset(), None
    for each in seen:  # log files come and go as they like: late ones, lost ones, ones that contradict others
        told = history(each, before=before, before_digest=digest, known=known, since_ms=since_ms)
        digest = fold(each).live.digest if knows_digest else None
        states = [frozenset(before or ()), *replay(told, before or ())]
        live_paths = set(fold(each).live.paths())
        assert states[-1] == live_paths
        needs = [told.before_since_ms, *(step.since_ms for step in told.steps)]
        assert told.steps or told.before_since_ms >= since_ms  # the live state is told always
        assert needs == sorted(needs)
        deaths = find_data_deaths(each)
        for state, need_ms in zip(states, needs, strict=True):
            for path in state - live_paths:
                assert need_ms < (deaths[path].seen_dead_ms if path in deaths else 0)
        assert all(step.since_ms >= since_ms for step in told.steps[:-1])
        before, known = live_paths, {log_name(file.key) for file in each.files}


def test_p4_each_log_file_is_a_step_and_says_what_it_did_to_rows():
    seen = view(
        listed(1, live("a")),
        listed(2, live("b")),
        listed(
            3,
            live("c", rows=2),
            dead("a", 3),
            dead("b", 3),
            kills=[kill(1, 3), kill(2, 3)],
            merged=True,
            change="merge",
        ),
        listed(4, live("d"), dead("c", 4), live("c2"), kills=[kill(3, 4, merged=True)], merged=True, change="delete"),
        listed(5, dead("d", 5), live("c2"), kills=[kill(4, 5, merged=True)], merged=True, change="removal"),
    )
    assert said(history(seen)) == [
        ("append", log_name(log_key(1)), [data("a")], []),
        ("append", log_name(log_key(2)), [data("b")], []),
        ("replace", log_name(log_key(3, merged=True)), [data("c")], [data("a"), data("b")]),
        ("overwrite", log_name(log_key(4, merged=True)), [data("d"), data("c2")], [data("c")]),
        ("delete", log_name(log_key(5, merged=True)), [], [data("d")]),
    ]


def test_p4_no_merge_comes_before_its_inputs_whatever_its_clock_said():
    merge = listed(
        2, live("c", rows=2), dead("a", 2), dead("b", 2), kills=[kill(5, 2), kill(6, 2)], merged=True, change="merge"
    )
    again = listed(
        1, live("e", rows=2), dead("c", 1, rows=2), kills=[kill(2, 1, merged=True)], merged=True, change="merge"
    )
    told = history(view(again, merge, listed(5, live("a")), listed(6, live("b"))))
    assert [(step.operation, len(step.added), len(step.removed)) for step in told.steps] == [
        ("append", 1, 0),
        ("append", 1, 0),
        ("replace", 1, 2),
        ("replace", 1, 1),
    ]


def test_p4_what_carries_a_log_file_on_comes_after_it_whatever_its_clock_said():
    carried = listed(2, live("a"), kills=[kill(5, 2)], merged=True, change="merge")
    assert said(history(view(carried, listed(5, live("a"))))) == [("append", log_name(log_key(5)), [data("a")], [])]


def test_p4_a_late_log_file_goes_behind_what_was_published():
    first = view(listed(7, live("b")))
    late = view(listed(3, live("a")), *first.files)
    told = history(late, before={data("b")}, known={log_name(log_key(7))})
    assert said(told) == [("append", log_name(log_key(3)), [data("a")], [])]


def test_p4_rows_that_were_never_told_make_a_merge_an_append():
    """Appended, merged with what was told, and gone from the log, all between two publications."""
    seen = view(listed(9, live("c", rows=2), dead("a", 9), dead("b", 9), merged=True, change="merge"))
    told = history(seen, before={data("a")}, known={log_name(log_key(1))})
    assert said(told) == [("overwrite", log_name(log_key(9, merged=True)), [data("c")], [data("a")])]
    assert history(seen, before=set()).steps[0].operation == "append"


def test_p4_what_no_log_file_explains_is_one_step_more():
    told = history(view(listed(1, live("a"))), before={data("a"), data("lost")}, known={log_name(log_key(1))})
    assert said(told) == [("delete", "", [], [data("lost")])]
    assert told.before_since_ms < 0  # nobody knows when it died: nothing that needs it may stay


def test_p4_a_first_publication_tells_no_state_that_may_lack_rows():
    """The log files behind the horizon are gone (R3): before this merge the table had more than one data file."""
    seen = view(
        listed(1, live("a")),
        listed(
            2, live("carried"), live("b"), dead("a", 2), kills=[kill(1, 2)], merged=True, change="merge", horizon_ms=2
        ),
        listed(3, live("c")),
    )
    assert said(history(seen)) == [
        ("append", "", [data("carried"), data("b")], []),
        ("append", log_name(log_key(3)), [data("c")], []),
    ]


def test_j4_a_state_that_needs_what_died_too_long_ago_is_not_told_by_itself():
    files = [listed(1, live("a")), listed(2, live("b")), listed(3, dead("a", 3), kills=[kill(1, 3)], merged=True)]
    seen = view(*files, listed(4, live("c")))
    assert len(history(seen, since_ms=0).steps) == 4
    died_ms = find_data_deaths(seen)[data("a")].seen_dead_ms
    assert len(history(seen, since_ms=died_ms - 1).steps) == 4
    told = history(seen, since_ms=died_ms)
    assert said(told)[0] == ("append", "", [data("b")], [])
    assert len(told.steps) == 2
    everything = history(seen, since_ms=NOW_MS)  # the live state is proven by the log, however short the grace is
    assert said(everything) == [("append", "", [data("b"), data("c")], [])]


def test_j4_what_is_live_may_die_as_soon_as_servers_of_one_store_differ():
    told = history(view(listed(1, live("a"))), before={data("a")}, known={log_name(log_key(1))})
    assert (told.steps, told.before_since_ms) == ((), NOW_MS - MAX_STORE_GAP_MS)


def test_j4_a_state_that_came_back_is_the_live_one_and_stays():
    """What was added since is gone again, too long ago to be told: nothing has changed, and nothing is dropped."""
    files = [listed(1, live("a")), listed(2, live("b")), listed(3, dead("b", 3), kills=[kill(2, 3)], merged=True)]
    told = history(view(*files), before={data("a")}, known={log_name(log_key(1))}, since_ms=NOW_MS)
    assert (told.steps, told.before_since_ms) == ((), NOW_MS)


def test_of_many_steps_the_oldest_are_one(monkeypatch):
    monkeypatch.setattr(steps_module, "MAX_STEPS", 3)
    seen = view(*(listed(number, live(f"f{number}")) for number in range(1, 9)))
    told = history(seen)
    assert [len(step.added) for step in told.steps] == [6, 1, 1]
    assert MAX_STEPS <= 128  # engines' sequence numbers have room for so many of each publication


@pytest.mark.parametrize("is_known", [True, False])
def test_what_is_dead_stays_dead(is_known):
    """A log file that was merged away long ago comes back: out of a backup, say."""
    merge = listed(5, live("b"), dead("a", 5), merged=True)
    back = listed(2, live("a"))
    known = {log_name(merge.key)} if is_known else set()
    told = history(view(merge, back), before={data("b")} if is_known else set(), known=known)
    assert all(step.log_name != log_name(back.key) or not is_known for step in told.steps)
    assert replay(told, {data("b")} if is_known else set())[-1:] in ([], [{data("b")}])
