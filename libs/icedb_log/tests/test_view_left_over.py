"""A view that is made anew under the name of one that was removed by hand, and the registration that was left over."""

import contextlib

import pytest
from icedb_log.errors import IceDBError
from icedb_log.feed.views import detach_view
from icedb_sim.fakes.scripted_store import Crash, Effect
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView


def make_removed(*, is_detached):
    table = SmallTable()
    view = SmallView(table)
    if is_detached:
        detach_view(table, "v", clock=table.clock)
    table.append(1)
    table.store.delete(table.keys(f"{view.paths.prefix}/"))
    table.append(2)
    return table


@pytest.mark.parametrize("is_detached", [False, True])
@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.DROP, Effect.LOSE_ANSWER])
def test_a_creation_that_is_cut_off_anywhere_is_finished_by_the_first_feed(effect, is_detached):
    number = 0
    is_over = False
    while not is_over:
        table = make_removed(is_detached=is_detached)
        view = SmallView(table, is_created=False)
        table.store.calls.clear()
        table.store.fault_at = {number: effect}
        with contextlib.suppress(IceDBError, Crash):
            view.create()
        is_over = len(table.store.calls) <= number
        table.store.fault_at = {}
        if not table.keys(view.paths.config_key):
            view.create()  # nothing is there yet; if something is, nobody comes back to finish it
        view.feed()
        table.append(3)
        view.feed_all()
        assert view.ids() == [3], number
        number += 1
    assert number > 5
