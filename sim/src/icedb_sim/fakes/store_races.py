"""Races for objects of a store: threads that create, replace and list at once. Part of the suite of every store.

See :mod:`icedb_sim.fakes.store_acceptance`, which puts the suite together.
"""

# The names of the tests are their documentation.
# ruff: noqa: D102

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar, Final, TypeVar

from icedb_log.errors import IceDBError, PreconditionFailed
from icedb_log.store.object_store import ObjectStore

RACER_COUNT: Final = 16
_T = TypeVar("_T")


def race(racers: Sequence[Callable[[], _T]]) -> list[_T | IceDBError]:
    """Run calls in as many threads at once; return for each its result, or the error of ours that it raised."""
    gate = threading.Barrier(len(racers))

    def run(racer: Callable[[], _T]) -> _T | IceDBError:
        gate.wait()
        try:
            return racer()
        except IceDBError as error:
            return error

    with ThreadPoolExecutor(len(racers)) as pool:
        return list(pool.map(run, racers))


class StoreRaces(ABC):
    """What every store does when several write at once."""

    race_count: ClassVar[int] = 20
    """Keys that are fought for in each race."""

    @abstractmethod
    def reopen(self, store: ObjectStore) -> ObjectStore:
        """Return another handle on the same objects."""

    def test_one_of_many_creates_wins(self, store: ObjectStore) -> None:
        handles = [store, self.reopen(store)]
        bodies = [f"racer {racer}".encode() for racer in range(RACER_COUNT)]
        for number in range(self.race_count):
            key = f"race/create/{number}"
            racers = [partial(handles[index % 2].put_if_absent, key, body) for index, body in enumerate(bodies)]
            _check_one_winner(store, key, bodies, race(racers))

    def test_one_of_many_replaces_wins(self, store: ObjectStore) -> None:
        handles = [store, self.reopen(store)]
        bodies = [f"racer {racer}".encode() for racer in range(RACER_COUNT)]
        for number in range(self.race_count):
            key = f"race/replace/{number}"
            etag = store.put_if_absent(key, b"before")
            racers = [
                partial(handles[index % 2].put_if_match, key, body, etag=etag) for index, body in enumerate(bodies)
            ]
            _check_one_winner(store, key, bodies, race(racers))

    def test_a_replace_never_lands_on_a_newer_object(self, store: ObjectStore) -> None:
        def delete_and_create(key: str) -> str:
            store.delete([key])
            return store.put_if_absent(key, b"new")

        for number in range(self.race_count * 2):
            key = f"race/newer/{number}"
            etag = store.put_if_absent(key, b"old")
            racers = [
                partial(delete_and_create, key),
                partial(store.put_if_match, key, b"replaced", etag=etag),
            ]
            results = race(racers)
            # Before the delete a replace may win, after it none may: in either case the new object stands.
            assert not isinstance(results[0], IceDBError)
            assert store.get(key).body == b"new", results

    def test_a_counter_in_the_store_loses_no_step(self, store: ObjectStore) -> None:
        store.put("race/counter", b"0")
        steps_each = 5

        def count() -> None:
            done = 0
            while done < steps_each:
                stored = store.get("race/counter")
                try:
                    store.put_if_match("race/counter", b"%d" % (int(stored.body) + 1), etag=stored.info.etag)
                except PreconditionFailed:
                    continue
                done += 1

        results = race([count] * (RACER_COUNT // 2))
        assert results == [None] * (RACER_COUNT // 2)
        assert int(store.get("race/counter").body) == steps_each * (RACER_COUNT // 2)

    def test_a_single_page_is_a_state_that_the_store_had(self, store: ObjectStore) -> None:
        # As the janitor does (J2, J3): the input log file goes first, then the merged one is stripped.
        rounds = self.race_count
        done = threading.Event()

        def watch() -> list[str]:
            wrong: list[str] = []
            while not done.is_set():
                page = store.list_page("race/page/")
                sizes = {info.key.rpartition("/")[2]: info.size_bytes for info in page.objects}
                if "input" in sizes and sizes.get("merged", 99) < len("rows, and a tombstone"):
                    wrong.append(str(sizes))
            return wrong

        def change() -> None:
            for number in range(rounds):
                store.put("race/page/input", b"rows %d" % number)
                etag = store.put_if_absent("race/page/merged", b"rows, and a tombstone %d" % number)
                store.delete(["race/page/input"])
                store.put_if_match("race/page/merged", b"rows %d" % number, etag=etag)
                store.delete(["race/page/merged"])
            done.set()

        results = race([change, watch, watch, watch])
        assert results == [None, [], [], []]


def _check_one_winner(
    store: ObjectStore, key: str, bodies: Sequence[bytes], results: Sequence[str | IceDBError]
) -> None:
    """Check that one racer won, that the others were refused in so many words, and that the winner's object stands."""
    winners = [index for index, result in enumerate(results) if isinstance(result, str)]
    assert len(winners) == 1, results
    losers = [result for result in results if not isinstance(result, str)]
    assert all(isinstance(loser, PreconditionFailed) for loser in losers), losers
    stored = store.get(key)
    assert (stored.body, stored.info.etag) == (bodies[winners[0]], results[winners[0]])
