"""A store whose faults a test writes down beforehand: lost answers, late landings, refusals, silence, crashes.

A script is a list of :class:`Fault`, each for one kind of call and a part of a key; the first that matches an
incoming call is used up by it. Without a match the call goes through. Every call is recorded.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from icedb_log.errors import CommitOutcomeUnknown, IceDBError, PreconditionFailed, Unavailable
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    ObjectStore,
    StoredObject,
)


class Crash(BaseException):
    """The process dies here. Not an ``Exception``: no handler of the code under test may catch it."""


class Effect(Enum):
    """What becomes of a call."""

    LOSE_ANSWER = "the store does it, the caller gets no answer"
    DROP = "the store never gets it, the caller gets no answer"
    DELAY = "as DROP, but the write waits and lands when the test calls land_delayed"
    TRY_TWICE = "the first try lands, its answer is lost, the client's own retry is refused"
    REFUSE = "refused without a reason that shows in the object"
    UNAVAILABLE = "no answer, and nothing happened"
    CRASH_BEFORE = "the process dies before the call"
    CRASH_AFTER = "the process dies after the call"


DISTURBANCES: Final = (
    Effect.CRASH_BEFORE,
    Effect.CRASH_AFTER,
    Effect.LOSE_ANSWER,
    Effect.DROP,
    Effect.DELAY,
    Effect.TRY_TWICE,
    Effect.UNAVAILABLE,
)
"""What may become of any call, at any time: whatever is run again after it has to be right."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a script.

    Attributes:
        method: Name of the store's method, or ``""`` for any.
        effect: What becomes of the call.
        key: Text that the key (or prefix, or any of the keys to delete) contains.
        before: Called first: what another actor does in this very moment.
    """

    method: str
    effect: Effect | None
    key: str = ""
    before: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made."""

    method: str
    key: str


class ScriptedStore:
    """An object store around another one, with faults."""

    def __init__(self, store: ObjectStore, script: Sequence[Fault] = ()) -> None:
        self.inner = store
        self.script = list(script)
        self.calls: list[Call] = []
        self.fault_at: dict[int, Effect] = {}
        """Faults by the number of the call in :attr:`calls`, counted from 0, whatever the call is."""
        self._delayed: list[Callable[[], object]] = []

    def land_delayed(self) -> None:
        """Let every delayed write reach the store now; one that is refused there vanishes, as on the network."""
        for write in self._delayed:
            with contextlib.suppress(IceDBError):
                write()
        self._delayed.clear()

    def keys_of(self, *methods: str) -> list[str]:
        """Return the keys of the recorded calls of some methods, in order."""
        return [call.key for call in self.calls if call.method in methods]

    def probe(self) -> None:
        """Probe the inner store."""
        self.inner.probe()

    def interrupt(self, number: int, act: Callable[[], object], *, when: str = "before") -> Callable[[], bool]:
        """Let somebody act once, just ``before`` or ``after`` a call; return what says whether that was.

        Args:
            number: Of the call, by those that the store has got.
            act: What is done; its own calls are not interrupted.
            when: ``before`` or ``after``.
        """
        run, is_done = self._run, False

        def run_call(method: str, key: str, action: Callable[[], Any]) -> Any:
            nonlocal is_done
            if is_done or len(self.calls) != number:
                return run(method, key, action)
            is_done = True
            if when == "before":
                act()
                return run(method, key, action)
            answer = run(method, key, action)
            act()
            return answer

        self._run = run_call  # type: ignore[method-assign]
        return lambda: is_done

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Read, unless the script says otherwise."""
        found: StoredObject = self._run("get", key, lambda: self.inner.get(key, if_match=if_match))
        return found

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Read a part, unless the script says otherwise."""
        found: StoredObject = self._run(
            "get_range", key, lambda: self.inner.get_range(key, start=start, length=length, if_match=if_match)
        )
        return found

    def head(self, key: str) -> ObjectInfo:
        """Read metadata, unless the script says otherwise."""
        found: ObjectInfo = self._run("head", key, lambda: self.inner.head(key))
        return found

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create, unless the script says otherwise."""
        etag: str = self._run("put_if_absent", key, lambda: self.inner.put_if_absent(key, body))
        return etag

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace, unless the script says otherwise."""
        new_etag: str = self._run("put_if_match", key, lambda: self.inner.put_if_match(key, body, etag=etag))
        return new_etag

    def put(self, key: str, body: bytes) -> str:
        """Write, unless the script says otherwise."""
        etag: str = self._run("put", key, lambda: self.inner.put(key, body))
        return etag

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """List, unless the script says otherwise."""
        page: ObjectPage = self._run(
            "list_page", prefix, lambda: self.inner.list_page(prefix, token=token, limit=limit)
        )
        return page

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """List folders, unless the script says otherwise."""
        folders: tuple[str, ...] = self._run("list_folders", prefix, lambda: self.inner.list_folders(prefix))
        return folders

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete; ``REFUSE`` makes each key that the fault names a failed one."""
        fault = self._peek("delete", " ".join(keys))
        if fault is not None and fault.effect is Effect.REFUSE:
            self.script.remove(fault)
            self.calls.append(Call("delete", " ".join(keys)))
            report = self.inner.delete([key for key in keys if fault.key not in key])
            refused = tuple(FailedDelete(key, "refused by the script", "denied") for key in keys if fault.key in key)
            return DeleteReport(report.deleted, refused)
        done: DeleteReport = self._run("delete", " ".join(keys), lambda: self.inner.delete(keys))
        return done

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """End old uploads, unless the script says otherwise."""
        count: int = self._run(
            "abort_stale_uploads", prefix, lambda: self.inner.abort_stale_uploads(prefix, before_ms=before_ms)
        )
        return count

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Copy out, unless the script says otherwise."""
        info: ObjectInfo = self._run("download", key, lambda: self.inner.download(key, path))
        return info

    def upload(self, key: str, path: Path, *, may_move: bool = False) -> None:
        """Copy in, unless the script says otherwise."""
        self._run("upload", key, lambda: self.inner.upload(key, path, may_move=may_move))

    def uri(self, key: str) -> str:
        """Return the inner store's address of a key."""
        return self.inner.uri(key)

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Return the inner store's URL of a key."""
        return self.inner.presign(key, expires_ms=expires_ms)

    def _peek(self, method: str, key: str) -> Fault | None:
        return next((f for f in self.script if f.method in ("", method) and f.key in key), None)

    def _run(self, method: str, key: str, action: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append(Call(method, key))
        effect = self.fault_at.get(number)
        fault = self._peek(method, key)
        if fault is not None:
            self.script.remove(fault)
            effect = fault.effect
            if fault.before is not None:
                fault.before()
        return action() if effect is None else self._fail(effect, f"{method} {key}", action)

    def _fail(self, effect: Effect, call: str, action: Callable[[], Any]) -> Any:
        if effect is Effect.REFUSE:
            raise PreconditionFailed(f"{call}: refused by the script")
        if effect is Effect.UNAVAILABLE:
            raise Unavailable(f"{call}: no answer, by the script")
        if effect is Effect.CRASH_BEFORE:
            raise Crash(f"before {call}")
        if effect is Effect.DELAY:
            self._delayed.append(action)
        if effect in (Effect.LOSE_ANSWER, Effect.CRASH_AFTER, Effect.TRY_TWICE):
            action()
        if effect is Effect.CRASH_AFTER:
            raise Crash(f"after {call}")
        if effect is Effect.TRY_TWICE:
            return action()
        lost = CommitOutcomeUnknown if call.startswith("put") else Unavailable
        raise lost(f"{call}: the answer got lost, by the script")
