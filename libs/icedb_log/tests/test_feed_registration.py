"""How a source comes to know its views, and when they hold up its janitor (V3, V4)."""

import contextlib

import pytest
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound
from icedb_log.feed.views import create_view, detach_view, is_feed_needed, read_registration, register_view
from icedb_log.table.table_config import TableConfig
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_view import SmallView, grow_old


def test_a_commit_that_lands_while_the_view_is_registered_is_fed_although_a_janitor_runs(table):
    """V3: the janitor reads registrations after the log, and the view lists the log after it is registered."""
    table.append(1)
    view = SmallView(table, is_created=False)

    def meanwhile():
        """The creator stalls between its pending registration and its listing."""
        table.append(2)
        table.append(3)
        table.merge(full=True)
        grow_old(table)
        assert not table.vacuum().deleted_logs  # all appends are kept: nobody knows yet which the view skips

    table.store.script.append(Fault("list_page", None, key="t/_log/", before=meanwhile))
    view.create()
    table.append(4)
    view.feed_all()
    assert view.ids() == [4]  # 2 and 3 were there before the listing

    def late():
        """A commit lands after the listing, and gets old, before the registration says what is skipped."""
        table.append(5)
        table.append(6)
        table.merge(full=True)
        grow_old(table)
        table.vacuum()

    other = SmallView(table, name="w", is_created=False)
    table.store.script.append(Fault("put_if_match", None, key="_icedb/views/w.json", before=late))
    other.create()
    other.feed_all()
    assert other.ids() == [5, 6]


def test_a_janitor_that_stalls_before_its_log_read_sees_a_view_that_was_registered_meanwhile(table):
    """V4: registrations are read after the log."""
    views = []

    def meanwhile():
        views.append(SmallView(table))
        table.append(1)
        table.append(2)
        table.merge(full=True)
        grow_old(table)

    table.store.script.append(Fault("list_page", None, key="t/_log/", before=meanwhile))
    table.vacuum()
    views[0].feed_all()
    assert views[0].ids() == [1, 2]


def test_a_registration_whose_view_is_gone_holds_nothing_up(table):
    view = SmallView(table)
    table.append(1)
    table.append(2)
    table.store.delete(table.keys(f"{view.paths.prefix}/"))
    table.merge(full=True)
    grow_old(table)
    assert len(table.vacuum().deleted_logs) == 2
    # Made anew, it begins anew.
    table.append(3)
    again = SmallView(table)
    table.append(4)
    again.feed_all()
    assert again.ids() == [4]


def test_a_view_whose_log_cannot_be_read_keeps_the_appends_of_its_source(table):
    view = SmallView(table)
    table.append(1)
    view.feed()
    table.append(2)
    table.merge(full=True)
    grow_old(table)
    table.store.put(f"{view.paths.log_prefix}0000000000001_aa.jsonl", b"broken")
    assert not table.vacuum().deleted_logs
    table.store.put(table.paths.view_key("v"), b"broken")
    assert not table.vacuum().deleted_logs
    with pytest.raises(CorruptLog, match="registration"):
        read_registration(table, "v")


def test_a_detached_view_holds_nothing_up_and_goes_on_from_where_it_is_attached(table):
    view = SmallView(table)
    table.append(1)
    view.feed()
    table.append(2)
    assert detach_view(table, "v", clock=table.clock)
    assert not detach_view(table, "v", clock=table.clock)
    result = view.feed()
    assert (result.is_attached, result.committed_key) == (False, None)
    assert not is_feed_needed(*view.opened())
    table.append(3)
    assert register_view(table, "v", clock=table.clock).state == "detached"
    table.merge(full=True)
    grow_old(table)
    assert len(table.vacuum().deleted_logs) == 3
    table.append(4)
    assert register_view(table, "v", clock=table.clock, is_new=True).state == "active"
    table.append(5)
    view.feed_all()
    assert view.ids() == [1, 5]
    with pytest.raises(NotFound, match="feeds no view 'x'"):
        detach_view(table, "x", clock=table.clock)


def test_a_stalled_creator_cannot_bring_back_an_old_list_of_what_is_skipped(table):
    """A registration has a fresh token each time: content that comes back does not bring its ETag back."""
    view = SmallView(table, is_created=False)

    def meanwhile():
        register_view(table, "v", clock=table.clock)
        detach_view(table, "v", clock=table.clock)
        table.append(1)
        table.store.script.append(Fault("list_page", Effect.CRASH_BEFORE, key="t/_log/"))
        with contextlib.suppress(Crash):
            register_view(table, "v", clock=table.clock, is_new=True)

    table.store.script.append(Fault("put_if_match", None, key="_icedb/views/v.json", before=meanwhile))
    view.create()
    table.append(2)
    view.feed_all()
    assert view.ids() == [2]


def test_who_listed_the_log_for_a_view_that_was_removed_does_not_begin_the_new_one(table):
    view = SmallView(table, is_created=False)
    table.store.script.append(Fault("list_page", Effect.CRASH_BEFORE, key="t/_log/"))
    with contextlib.suppress(Crash):
        view.create()

    def meanwhile():
        table.store.delete(table.keys(f"{view.paths.prefix}/"))
        table.append(1)
        table.store.script.append(Fault("list_page", Effect.CRASH_BEFORE, key="t/_log/"))
        with contextlib.suppress(Crash):
            view.create()

    table.store.script.append(Fault("put_if_match", None, key="_icedb/views/v.json", before=meanwhile))
    register_view(table, "v", clock=table.clock)
    table.append(2)
    view.feed_all()
    assert view.ids() == [2]


def test_views_of_views_are_fed_and_cycles_refused(table):
    first = SmallView(table)
    second = SmallView(table, name="w", source=first.paths)
    table.append(1)
    first.feed()
    second.feed()
    first.merge(full=True)  # a merge of the source is no commit to be fed
    assert not second.feed().committed_key
    assert (first.ids(), second.ids()) == ([1], [1])
    # The only way to a cycle: a table is removed by hand, and comes back as a view of what it feeds.
    table.store.delete([table.paths.config_key])
    config = TableConfig.create(name="t", view_of="w", view_query="select * from _rows")
    with pytest.raises(InvalidRequest, match="view t of w of v of t: it would feed itself"):
        create_view(table, config, clock=table.clock)
    with pytest.raises(NotFound):
        SmallView(table, name="x", source=table.paths.sibling("nobody"))


def test_a_chain_of_views_has_an_end(table):
    source = table.paths
    for number in range(7):
        source = SmallView(table, name=f"v{number}", source=source).paths
    with pytest.raises(InvalidRequest, match="at most 8 in a row"):
        SmallView(table, name="v8", source=source)
