"""The probe refuses every kind of store that would lose commits, and cleans up behind itself."""

import pytest
from icedb_log.errors import PreconditionFailed, Unavailable, UnsupportedFormat
from icedb_log.store.object_store import list_all, probe_conditional_writes
from icedb_sim.fakes.memory_store import MemoryObjectStore


class IgnoresCreate(MemoryObjectStore):
    def put_if_absent(self, key, body):
        return self.put(key, body)


class IgnoresMatch(MemoryObjectStore):
    def put_if_match(self, key, body, *, etag):
        return self.put(key, body)


class RefusesMatch(MemoryObjectStore):
    def put_if_match(self, key, body, *, etag):
        raise PreconditionFailed("always")


class FailsMatch(MemoryObjectStore):
    def put_if_match(self, key, body, *, etag):
        raise Unavailable("gone")


class KeepsWhatIsDeleted(MemoryObjectStore):
    def delete(self, keys):
        raise Unavailable("read only")


def probe(store):
    probe_conditional_writes(store, "root/", scratch_id="id", name="the store")


@pytest.mark.parametrize(
    ("kind", "words"),
    [(IgnoresCreate, "If-None-Match"), (IgnoresMatch, "If-Match"), (RefusesMatch, "ETag")],
)
def test_a_store_that_would_lose_commits_is_refused(kind, words):
    store = kind(lambda: 0)
    with pytest.raises(UnsupportedFormat, match=words) as caught:
        probe(store)
    for part in ("the store", "root/_icedb_probe/id", "use a store with conditional writes"):
        assert part in str(caught.value)
    assert list_all(store, "").objects == ()


def test_what_else_goes_wrong_is_told_as_it_is():
    store = FailsMatch(lambda: 0)
    with pytest.raises(Unavailable, match="gone"):
        probe(store)
    assert list_all(store, "").objects == ()


def test_a_scratch_object_that_stays_fails_nothing():
    store = KeepsWhatIsDeleted(lambda: 0)
    probe(store)
    assert [info.key for info in list_all(store, "").objects] == ["root/_icedb_probe/id"]
