"""The directory store between processes: races, processes that are killed, locks that nobody releases."""

import contextlib
import signal
import subprocess
import sys
import textwrap

import pytest
from icedb_log.errors import Unavailable
from icedb_log.store import local_store
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.object_store import list_all
from icedb_sim.fakes.store_acceptance import expect
from waiting import LIMIT_S


@pytest.fixture
def root(tmp_path):
    return tmp_path / "warehouse"


@pytest.fixture
def store(root):
    return LocalObjectStore(root)


PROCESS = """
import sys
from pathlib import Path
from icedb_log.errors import PreconditionFailed
from icedb_log.store.local_store import LocalObjectStore

store, name, rounds, block = LocalObjectStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
won = []
for number in range(rounds):
    if number % block == 0:
        print("ready", flush=True)
        sys.stdin.readline()
    try:
        store.put_if_absent(f"log/d={number % 5}/{number}", name.encode())
        won.append(number)
    except PreconditionFailed:
        pass
    while True:
        stored = store.get("counter")
        try:
            store.put_if_match("counter", b"%d" % (int(stored.body) + 1), etag=stored.info.etag)
            break
        except PreconditionFailed:
            pass
    # Folders come and go under everybody's feet.
    store.put(f"gone/{number}/x", b"x")
    store.delete([f"gone/{number}/x"])
print(*won, flush=True)
"""


@contextlib.contextmanager
def python(code, *arguments):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_processes_race_as_threads_do(store, root):
    rounds, block, count = 100, 10, 4
    store.put("counter", b"0")
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(python(PROCESS, root, f"p{n}", rounds, block)) for n in range(count)]
        for start in range(rounds // block):
            assert {process.stdout.readline() for process in processes} == {"ready\n"}
            # Another one is first each time: a whole block may pass before the next one runs.
            for number in range(count):
                process = processes[(start + number) % count]
                process.stdin.write("go\n")
                process.stdin.flush()
        won = [[int(number) for number in process.stdout.readline().split()] for process in processes]
        assert [process.wait(LIMIT_S) for process in processes] == [0] * count
    assert sorted(number for numbers in won for number in numbers) == list(range(rounds))
    assert sum(bool(numbers) for numbers in won) > 1, "one process won every race: it was none"
    for name, numbers in enumerate(won):
        for number in numbers:
            assert store.get(f"log/d={number % 5}/{number}").body == f"p{name}".encode()
    assert int(store.get("counter").body) == rounds * count
    assert store.list_folders("") == ("log",)


def test_a_killed_process_leaves_no_lock_and_no_object(store, root):
    code = """
        import sys
        from pathlib import Path
        from icedb_log.store.local_store import LocalObjectStore
        store = LocalObjectStore(Path(sys.argv[1]))
        store.put("key", b"before")
        with store._locked("key"), store._temporary(iter((b"half",)), "key"):
            print("holding", flush=True)
            sys.stdin.readline()
    """
    with python(code, root) as process:
        assert process.stdout.readline() == "holding\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    store.put("key", b"after")
    assert [info.key for info in list_all(store, "").objects] == ["key"]
    assert store.get("key").body == b"after"


def test_a_lock_that_is_never_released_is_reported(store, monkeypatch):
    monkeypatch.setattr(local_store, "LOCK_WAIT_MS", 20)
    store.put("key", b"before")
    with store._locked("key"):
        error = expect(Unavailable, lambda: store.put("key", b"after"))
    assert "lock" in str(error)
    assert store.get("key").body == b"before"
    store.put("key", b"after")


def test_a_delete_below_several_locks_fails_for_those_alone_that_are_held(store, monkeypatch):
    monkeypatch.setattr(local_store, "LOCK_WAIT_MS", 20)
    keys = [f"d={number}/{name}" for number in range(8) for name in "ab"]
    for key in keys:
        store.put(key, b"x")
    with store._locked("d=3/a"):
        report = store.delete(keys)
    assert [failed.key for failed in report.failed] == ["d=3/a", "d=3/b"]
    assert "lock" in report.failed[0].reason
    assert report.deleted == tuple(key for key in keys if not key.startswith("d=3/"))
    assert [info.key for info in list_all(store, "").objects] == ["d=3/a", "d=3/b"]


def test_a_delete_never_waits_for_a_lock_that_it_holds_itself(store, monkeypatch):
    monkeypatch.setattr(local_store, "LOCK_COUNT", 1)
    monkeypatch.setattr(local_store, "LOCK_WAIT_MS", 0)
    keys = [f"d={number % 8}/{number}" for number in range(80)]
    for key in keys:
        store.put(key, b"x")
    assert store.delete(keys).failed == ()
