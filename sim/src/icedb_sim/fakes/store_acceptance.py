"""One suite that every object store passes: the promises of :mod:`icedb_log.store.object_store`, tried out.

A test module makes a subclass whose name begins with ``Test`` and gives it the fixture ``store``, and a
:meth:`StoreAcceptance.reopen` that returns a second handle on the same objects. The suite needs pytest only as
whatever collects it. Each test works below a prefix of its own, and starts with an empty store.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from icedb_log.clock import SystemClock
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, ObjectStore, delete_or_raise, largest_page, list_all

# The names of the tests are their documentation.
# ruff: noqa: D102


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
    lost_races: ClassVar[tuple[type[IceDBError], ...]] = (PreconditionFailed,)
    """What a conditional write may raise that meets another one for its key."""

    @abstractmethod
    def reopen(self, store: ObjectStore) -> ObjectStore:
        """Return another handle on the same objects."""

    def test_one_of_many_creates_wins(self, store: ObjectStore) -> None:
        handles = [store, self.reopen(store)]
        bodies = [f"racer {racer}".encode() for racer in range(RACER_COUNT)]
        for number in range(self.race_count):
            key = f"race/create/{number}"
            racers = [partial(handles[index % 2].put_if_absent, key, body) for index, body in enumerate(bodies)]
            _check_one_winner(store, key, bodies, race(racers), self.lost_races)

    def test_one_of_many_replaces_wins(self, store: ObjectStore) -> None:
        handles = [store, self.reopen(store)]
        bodies = [f"racer {racer}".encode() for racer in range(RACER_COUNT)]
        for number in range(self.race_count):
            key = f"race/replace/{number}"
            etag = store.put_if_absent(key, b"before")
            racers = [
                partial(handles[index % 2].put_if_match, key, body, etag=etag) for index, body in enumerate(bodies)
            ]
            _check_one_winner(store, key, bodies, race(racers), self.lost_races)

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
            assert not isinstance(results[0], IceDBError), results
            assert store.get(key).body == b"new", results

    def test_a_counter_in_the_store_loses_no_step(self, store: ObjectStore) -> None:
        store.put("race/counter", b"0")
        steps_each = 5

        def count() -> int:
            done = unknown = 0
            while done < steps_each:
                stored = store.get("race/counter")
                try:
                    store.put_if_match("race/counter", b"%d" % (int(stored.body) + 1), etag=stored.info.etag)
                except self.lost_races as error:
                    unknown += isinstance(error, CommitOutcomeUnknown)
                    continue
                done += 1
            return unknown

        results = race([count] * (RACER_COUNT // 2))
        unknown = sum(each for each in results if isinstance(each, int))
        assert not any(isinstance(each, IceDBError) for each in results), results
        step_count = steps_each * (RACER_COUNT // 2)
        assert step_count <= int(store.get("race/counter").body) <= step_count + unknown

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
    store: ObjectStore,
    key: str,
    bodies: Sequence[bytes],
    results: Sequence[str | IceDBError],
    lost_races: tuple[type[IceDBError], ...],
) -> None:
    """Check that one racer won, that the others were refused, and that the winner's object stands.

    The winner may be one of those whose outcome is unknown, where the store answers so.
    """
    winners = [index for index, result in enumerate(results) if isinstance(result, str)]
    assert all(isinstance(result, (str, *lost_races)) for result in results), results
    stored = store.get(key)
    if winners or CommitOutcomeUnknown not in lost_races:
        assert len(winners) == 1, results
        assert (stored.body, stored.info.etag) == (bodies[winners[0]], results[winners[0]])
    else:
        assert isinstance(results[bodies.index(stored.body)], CommitOutcomeUnknown), results


# The names of the tests are their documentation.
# ruff: noqa: D102


ODD_NAMES: Final = (
    "plain.jsonl",
    "d=2023-06-07",
    "plus+plus",
    "with space",
    "tilde~",
    "quote'single",
    'quote"double',
    "per%20cent",
    "per%cent",
    "amp&amp;",
    "less<more>",
    "hash#frag",
    "ask?=1",
    "comma,semi;colon:",
    "back\\slash",
    "star*",
    "$dollar@at!",
    "(paren)[brack]{brace}",
    "..dots",
    "dots..",
    "...",
    ".hidden",
    "-dash",
    "umlaut-äöü",
    "japanese-日本",
    "astral-😀",
    "private-\ue000",
)
ILLEGAL_KEYS: Final = (
    "",
    "/absolute",
    "folder/",
    "a//b",
    "a/./b",
    "../escape",
    "a/../../escape",
    "nul\0byte",
    "line\nfeed",
    "delete\x7f",
    "surrogate\udc80",
    "x" * 1025,
    "c" * 256,
    "é" * 128,
)


def expect(error_type: type[IceDBError], call: Callable[[], object]) -> IceDBError:
    """Return the error of a call that must raise ``error_type``; anything else fails the test."""
    try:
        result = call()
    except error_type as error:
        assert str(error), "an error must say something"
        return error
    raise AssertionError(f"{error_type.__name__} was not raised; the call returned {result!r}")


class StoreAcceptance(StoreRaces):
    """What every store does. Subclasses provide ``store`` (a fixture) and :meth:`reopen`."""

    many_count: ClassVar[int] = 1100
    page_size: ClassVar[int] = MAX_KEYS_PER_PAGE
    """Objects in the tests of more than one full page."""

    large_bytes: ClassVar[int] = 20 * 1024 * 1024
    """A file that every store moves in parts, or streams."""

    # -- single objects

    def test_an_object_comes_back_as_it_was_written(self, store: ObjectStore) -> None:
        for name, body in (("empty", b""), ("small", b'{"a": 1}\n'), ("bytes", bytes(range(256)) * 2000)):
            key = f"roundtrip/{name}"
            etag = store.put_if_absent(key, body)
            stored = store.get(key)
            assert stored.body == body
            assert stored.info == store.head(key)
            assert (stored.info.key, stored.info.etag, stored.info.size_bytes) == (key, etag, len(body))
            assert '"' not in etag
            assert etag
        assert self.reopen(store).get("roundtrip/small").body == b'{"a": 1}\n'

    def test_what_is_not_there_is_not_found(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("missing/folder/object", b"x")
        for key in ("missing/other", "missing/folder", "missing/folder/object/below", "nowhere/at/all"):
            assert key in str(expect(NotFound, lambda key=key: store.get(key)))  # type: ignore[misc]
            expect(NotFound, lambda key=key: store.head(key))  # type: ignore[misc]
            expect(NotFound, lambda key=key: store.download(key, tmp_path / "copy"))  # type: ignore[misc]

    def test_create_is_refused_once_the_key_exists(self, store: ObjectStore) -> None:
        store.put_if_absent("create/key", b"first")
        error = expect(PreconditionFailed, lambda: store.put_if_absent("create/key", b"second"))
        assert "create/key" in str(error)
        expect(PreconditionFailed, lambda: store.put_if_absent("create/key", b"first"))
        assert store.get("create/key").body == b"first"
        store.delete(["create/key"])
        store.put_if_absent("create/key", b"third")
        assert store.get("create/key").body == b"third"

    def test_replace_needs_the_etag_of_what_is_there(self, store: ObjectStore) -> None:
        expect(PreconditionFailed, lambda: store.put_if_match("replace/key", b"x", etag="0" * 32))
        expect(NotFound, lambda: store.get("replace/key"))
        first = store.put_if_absent("replace/key", b"first")
        second = store.put_if_match("replace/key", b"second", etag=first)
        assert second != first
        expect(PreconditionFailed, lambda: store.put_if_match("replace/key", b"third", etag=first))
        assert store.get("replace/key").body == b"second"
        assert store.head("replace/key").etag == second
        store.delete(["replace/key"])
        expect(PreconditionFailed, lambda: store.put_if_match("replace/key", b"third", etag=second))
        expect(NotFound, lambda: store.head("replace/key"))

    def test_replace_works_on_large_objects_too(self, store: ObjectStore) -> None:
        bodies = [bytes([number]) * 300_000 for number in range(4)]
        etags = [store.put_if_absent("large/key", bodies[0])]
        for body in bodies[1:]:
            etags.append(store.put_if_match("large/key", body, etag=etags[-1]))
            expect(PreconditionFailed, lambda: store.put_if_match("large/key", b"lost", etag=etags[-2]))
        assert len(set(etags)) == len(etags)
        assert store.get("large/key", if_match=etags[-1]).body == bodies[-1]
        assert store.list_page("large/").objects == (store.head("large/key"),)

    def test_equal_content_of_a_small_object_has_an_equal_etag(self, store: ObjectStore) -> None:
        first = store.put("etag/one", b"same")
        assert store.put("etag/two", b"same") == first
        assert store.put("etag/two", b"else") != first
        assert store.put("etag/two", b"same") == first
        assert {info.etag for info in self.reopen(store).list_page("etag/").objects} == {first}

    def test_an_unconditional_write_overwrites(self, store: ObjectStore) -> None:
        store.put("over/write", b"first")
        etag = store.put("over/write", b"second!")
        stored = store.get("over/write")
        assert (stored.body, stored.info.etag, stored.info.size_bytes) == (b"second!", etag, 7)

    def test_a_read_may_insist_on_an_etag(self, store: ObjectStore) -> None:
        first = store.put("read/key", b"first")
        assert store.get("read/key", if_match=first).body == b"first"
        second = store.put("read/key", b"second")
        expect(PreconditionFailed, lambda: store.get("read/key", if_match=first))
        assert store.get("read/key", if_match=second).body == b"second"
        expect(NotFound, lambda: store.get("read/none", if_match=second))

    def test_a_part_of_an_object_is_read_without_the_rest(self, store: ObjectStore) -> None:
        for name, size_bytes in (("empty", 0), ("small", 1000), ("large", 300_000)):
            key, body = f"range/{name}", (bytes(range(251)) * 1200)[:size_bytes]
            store.put(key, body)
            info = store.head(key)
            for start in (0, 1, 999, 1000, 1001, 299_990, 400_000):
                for length in (0, 1, 10, 1000, 500_000):
                    for if_match in (None, info.etag):
                        part = store.get_range(key, start=start, length=length, if_match=if_match)
                        assert (part.info, part.body) == (info, body[start : start + length]), (start, length)
        for start, length in ((-1, 5), (0, -1), (-5, 0)):
            expect(InvalidRequest, partial(store.get_range, "range/small", start=start, length=length))

    def test_a_read_of_a_part_may_insist_on_an_etag(self, store: ObjectStore) -> None:
        first = store.put("part/key", b"first content")
        second = store.put("part/key", b"second content")
        # Beyond the end and of no bytes, too: an answer that holds nothing must not say that all is as before.
        for start, length in ((0, 5), (6, 100), (14, 5), (1000, 5), (3, 0)):
            read = partial(store.get_range, "part/key", start=start, length=length)
            expect(PreconditionFailed, partial(read, if_match=first))
            assert read(if_match=second).body == b"second content"[start : start + length]
            none = partial(store.get_range, "part/none", start=start, length=length)
            expect(NotFound, none)
            expect(NotFound, partial(none, if_match=second))

    def test_impossible_keys_are_refused_and_write_nothing(self, store: ObjectStore, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"x")
        before = list_all(store, "").objects
        for key in ILLEGAL_KEYS:
            calls: tuple[Callable[[], object], ...] = (
                lambda key=key: store.put(key, b"x"),  # type: ignore[misc]
                lambda key=key: store.put_if_absent(key, b"x"),  # type: ignore[misc]
                lambda key=key: store.put_if_match(key, b"x", etag="0"),  # type: ignore[misc]
                lambda key=key: store.upload(key, source),  # type: ignore[misc]
                lambda key=key: store.get(key),  # type: ignore[misc]
                lambda key=key: store.get_range(key, start=0, length=1),  # type: ignore[misc]
                lambda key=key: store.head(key),  # type: ignore[misc]
            )
            for call in calls:
                expect(InvalidRequest, call)
        assert list_all(store, "").objects == before

    def test_odd_but_legal_keys_work_everywhere(self, store: ObjectStore, tmp_path: Path) -> None:
        keys = [f"odd/{name}/{name}" for name in ODD_NAMES]
        for key in keys:
            store.put_if_absent(key, key.encode())
        for key in keys:
            assert store.get(key).body == key.encode()
            assert store.head(key).key == key
            store.download(key, tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == key.encode()
            assert store.uri(key).endswith(key)
            assert [info.key for info in store.list_page(key).objects] == [key]
        assert [info.key for info in list_all(store, "odd/", page_size=4).objects] == _in_key_order(keys)
        assert list(store.list_folders("odd/")) == _in_key_order(ODD_NAMES)
        assert store.delete(keys).failed == ()
        assert list_all(store, "odd/").objects == ()

    # -- listings

    def test_keys_are_listed_in_the_order_of_their_bytes(self, store: ObjectStore) -> None:
        names = ("a.b", "a/b", "a/b.c", "a0", "a-b/c", "a/z/y", "a/z.y", "Z", "_", "é", "\uffee", "😀", "b/a", "b.a")
        for name in names:
            store.put(f"order/{name}", b"x")
        for page_size in (1, 3, 1000):
            listed = [info.key for info in list_all(store, "order/", page_size=page_size).objects]
            assert listed == _in_key_order([f"order/{name}" for name in names])

    def test_a_prefix_is_a_string_not_a_folder(self, store: ObjectStore) -> None:
        for name in ("log/a", "log_b", "lo/c", "logs/d/e", "x"):
            store.put(f"prefix/{name}", b"x")
        expected = {
            "prefix/log": ["prefix/log/a", "prefix/log_b", "prefix/logs/d/e"],
            "prefix/log/": ["prefix/log/a"],
            "prefix/logs/d": ["prefix/logs/d/e"],
            "prefix/logs/d/e": ["prefix/logs/d/e"],
            "prefix/logs/d/e/": [],
            "prefix/none": [],
            "prefix/../prefix/": [],
            "prefix//": [],
            "/": [],
        }
        for prefix, keys in expected.items():
            page = store.list_page(prefix)
            assert [info.key for info in page.objects] == keys, prefix
            assert page.next_token is None

    def test_a_listing_describes_objects_as_a_read_does(self, store: ObjectStore) -> None:
        etags = {f"describe/{number}": store.put(f"describe/{number}", b"x" * number) for number in range(5)}
        for handle in (store, self.reopen(store)):
            page = handle.list_page("describe/")
            assert {info.key: info.etag for info in page.objects} == etags
            assert all(info == handle.head(info.key) for info in page.objects)

    def test_pages_add_up_whatever_their_size(self, store: ObjectStore) -> None:
        keys = [f"pages/{number % 3}/{number:02}" for number in range(12)]
        for key in keys:
            store.put(key, b"x")
        for limit in (1, 5, 6, 11, 12, 13):
            pages: list[list[str]] = []
            token: str | None = None
            while not pages or token is not None:
                page = store.list_page("pages/", token=token, limit=limit)
                pages.append([info.key for info in page.objects])
                token = page.next_token
            assert [len(page) for page in pages] == [limit] * (12 // limit) + [12 % limit] * (12 % limit > 0)
            assert [key for page in pages for key in page] == sorted(keys)
        for limit in (0, -1, largest_page(store) + 1):
            expect(InvalidRequest, lambda limit=limit: store.list_page("pages/", limit=limit))  # type: ignore[misc]

    def test_changes_between_pages_show_from_the_last_key_on(self, store: ObjectStore) -> None:
        for name in "bdfhj":
            store.put(f"between/{name}", b"x")
        first = store.list_page("between/", limit=2)
        assert [info.key for info in first.objects] == ["between/b", "between/d"]
        for name in "aceg":
            store.put(f"between/{name}", b"x")
        store.delete(["between/d", "between/h"])
        store.put("between/j", b"new content")
        second = store.list_page("between/", token=first.next_token, limit=3)
        assert [info.key for info in second.objects] == ["between/e", "between/f", "between/g"]
        third = store.list_page("between/", token=second.next_token)
        assert [(info.key, info.size_bytes) for info in third.objects] == [("between/j", 11)]
        assert third.next_token is None

    def test_more_than_a_page_is_listed_and_deleted_whole(self, store: ObjectStore) -> None:
        keys = [f"many/{number:05}" for number in range(self.many_count)]
        with ThreadPoolExecutor(RACER_COUNT) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))
        page = store.list_page("many/")
        assert len(page.objects) == self.page_size
        assert page.next_token is not None
        listing = list_all(store, "many/")
        assert [info.key for info in listing.objects] == keys
        assert listing.page_count == -(-self.many_count // self.page_size)
        kept = keys[self.many_count // 2]
        candidates = [key for key in keys if key != kept] + ["many/missing", "never/was", keys[0]]
        report = store.delete(candidates)
        assert report.failed == ()
        assert sorted(report.deleted) == sorted(set(candidates))
        assert [info.key for info in list_all(store, "many/").objects] == [kept]
        assert store.delete(candidates).failed == ()
        assert store.delete([]).deleted == ()

    def test_a_delete_reports_keys_that_cannot_be(self, store: ObjectStore) -> None:
        store.put("delete/good", b"x")
        report = store.delete(["delete/good", "delete/none", "bad\0key", ""])
        assert report.deleted == ("delete/good", "delete/none")
        assert sorted(entry.key for entry in report.failed) == ["", "bad\0key"]
        assert all(entry.reason and entry.kind == "other" for entry in report.failed)
        expect(NotFound, lambda: store.head("delete/good"))
        # No key went, and yet the store answered: that is a report; who wants an error asks for it.
        assert store.delete(["bad\0key"]).deleted == ()
        assert "bad" in str(expect(Unavailable, lambda: delete_or_raise(store, ["bad\0key"])))
        delete_or_raise(store, ["bad\0key", "delete/good"])

    def test_each_key_of_a_delete_is_reported_once_and_in_order(self, store: ObjectStore) -> None:
        for number in (3, 1, 2):
            store.put(f"order/{number}", b"x")
        keys = [f"order/{number}" for number in (2, 9, 1, 2, 3, 9)]
        assert store.delete(keys).deleted == ("order/2", "order/9", "order/1", "order/3")
        assert store.delete(tuple(keys)).deleted == ("order/2", "order/9", "order/1", "order/3")

    def test_what_is_written_is_no_stale_upload(self, store: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"x" * self.large_bytes)
        store.upload("uploads/large", tmp_path / "source")
        store.put_if_absent("uploads/small", b"x")
        now_ms = store.list_page("uploads/").store_now_ms
        for before_ms in (0, now_ms, now_ms + 3_600_000):
            assert store.abort_stale_uploads("uploads/", before_ms=before_ms) == 0
        assert store.head("uploads/large").size_bytes == self.large_bytes
        assert store.get("uploads/small").body == b"x"

    def test_deleting_a_folder_name_deletes_nothing_below_it(self, store: ObjectStore) -> None:
        store.put("folder/a/b", b"x")
        assert store.delete(["folder/a", "folder"]).failed == ()
        assert store.get("folder/a/b").body == b"x"

    def test_folders_are_the_first_components_below(self, store: ObjectStore) -> None:
        for key in ("t/b/_log/1", "t/b/_log/2", "t/a/x", "t/file", "t/b.c/x", "t/c=1/d=2/x", "other/x"):
            store.put(f"folders/{key}", b"x")
        assert store.list_folders("folders/t/") == ("a", "b", "b.c", "c=1")
        assert store.list_folders("folders/t/c=1/") == ("d=2",)
        assert store.list_folders("folders/t/a/") == ()
        assert store.list_folders("folders/none/") == ()
        assert "folders" in store.list_folders("")
        expect(InvalidRequest, lambda: store.list_folders("folders/t"))
        store.delete(["folders/t/b/_log/1", "folders/t/b/_log/2"])
        assert "b" not in store.list_folders("folders/t/")

    def test_the_stores_clock_is_one_clock(self, store: ObjectStore) -> None:
        earlier_ms = store.list_page("clock/").store_now_ms
        for number in range(20):
            key = f"clock/{number}"
            store.put(key, b"x")
            page = store.list_page(key)
            assert earlier_ms <= page.objects[0].modified_ms <= page.store_now_ms
            earlier_ms = page.store_now_ms
        etag = store.put("clock/0", b"y")
        replaced_ms = store.head("clock/0").modified_ms
        store.put_if_match("clock/0", b"z", etag=etag)
        assert store.head("clock/0").modified_ms >= replaced_ms >= earlier_ms
        # No store here is hours off: a wrong unit would be.
        assert abs(earlier_ms - self._host_ms(store)) < 3_600_000

    # -- files

    def test_files_go_up_and_down(self, store: ObjectStore, tmp_path: Path) -> None:
        source, copy = tmp_path / "source ü.parquet", tmp_path / "copy"
        for size_bytes in (0, 100, 100_000, self.large_bytes):
            body = (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]
            source.write_bytes(body)
            store.upload("files/d=1/data.parquet", source)
            info = store.head("files/d=1/data.parquet")
            assert (info.key, info.size_bytes) == ("files/d=1/data.parquet", size_bytes)
            assert store.list_page("files/").objects == (info,)
            assert store.download(info.key, copy) == info
            assert copy.read_bytes() == body
            store.upload("moved/data.parquet", copy, may_move=True)
            assert store.get("moved/data.parquet").body == body == source.read_bytes()
            copy.unlink(missing_ok=True)
        assert store.get("files/d=1/data.parquet", if_match=info.etag).info == info
        for may_move in (False, True):
            expect(
                InvalidRequest,
                lambda may_move=may_move: store.upload("files/none", tmp_path / "none", may_move=may_move),  # type: ignore[misc]
            )
        expect(NotFound, lambda: store.head("files/none"))

    def test_the_probe_accepts_the_store_and_leaves_nothing(self, store: ObjectStore) -> None:
        before = list_all(store, "").objects
        store.probe()
        store.probe()
        assert list_all(store, "").objects == before

    def _host_ms(self, store: ObjectStore) -> int:
        """Return what the store's clock should be near to."""
        del store
        return SystemClock().now_ms()


def _in_key_order(keys: Sequence[str]) -> list[str]:
    """Return keys in the order of their UTF-8 bytes."""
    return sorted(keys, key=str.encode)
