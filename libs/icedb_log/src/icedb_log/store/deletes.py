"""Deletes of many keys: requests of at most 1,000 keys each, some at once, at the pace that the store takes.

Owns which keys are sent again, when a call gives up, and how fast it goes. It knows no S3: a request is a function. The
caller's thread alone decides and waits; the others only send. Every key ends in the report, once.

The pace is additive increase, multiplicative decrease, as networks do it: each answer lets a little more be in flight,
each sign of overload halves what is, and stops everything for a pause that doubles. All requests that were on their way
when the store first asked count as one sign. A pace belongs to a store and outlives its calls: the next one does not
begin at full speed into a store that has just asked for patience. S3 takes some thousands of deletes a second for one
prefix, and counts each key of a request.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.store.object_store import MAX_KEYS_PER_DELETE, DeleteFailure, DeleteReport, FailedDelete

MAX_IN_FLIGHT: Final = 8
"""Requests of one call that are on their way at once, at most."""

START_IN_FLIGHT: Final = 2
"""With how many a new store begins."""

FIRST_PAUSE_MS: Final = 200
"""The pause after the first sign of overload; it doubles with each further one, and halves with each answer."""

MAX_PAUSE_MS: Final = 20_000

MAX_TRIES: Final[Mapping[DeleteFailure, int]] = {"throttled": 8, "unanswered": 3, "ignored": 2}
"""How often a key is sent, by what became of it last; what is not named here is not sent again. So many signs of
overload in a row, without any key deleted in between, end the call as well."""

_JITTER_DIGITS: Final = 4


class DeletePace:
    """What is known of how much a store takes. Safe for use by many threads."""

    def __init__(self, clock: Clock) -> None:
        """Begin carefully.

        Args:
            clock: Its monotonic time measures pauses; its ids make those of several processes unequal.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._limit = float(START_IN_FLIGHT)
        self._pause_ms = 0
        self._resumes_ms = 0
        self._generation = 0

    @property
    def limit(self) -> int:
        """How many requests of one call may be in flight now, 1 to ``MAX_IN_FLIGHT``."""
        return int(self._limit)

    @property
    def generation(self) -> int:
        """The number of signs of overload so far: what a request remembers of the moment when it was sent."""
        return self._generation

    def wait_ms(self) -> int:
        """Return how long nothing more may be sent; 0: at once."""
        return max(0, self._resumes_ms - self._clock.monotonic_ms())

    def note_answer(self, generation: int) -> None:
        """Take note that the store did what a request asked for.

        Args:
            generation: Of the moment when the request was sent. One from before the last sign of overload says nothing
                about the store as it is now.
        """
        with self._lock:
            if generation == self._generation:
                self._limit = min(self._limit + 1 / self._limit, float(MAX_IN_FLIGHT))
                self._pause_ms = self._pause_ms // 2 if self._pause_ms > FIRST_PAUSE_MS else 0

    def note_overload(self, generation: int) -> bool:
        """Take note that the store asked for patience, or did not answer. Arguments as for :meth:`note_answer`.

        Returns:
            Whether it is a new sign; not if the request was on its way already when the last one came.
        """
        with self._lock:
            if generation != self._generation:
                return False
            self._generation += 1
            self._limit = max(1.0, self._limit / 2)
            self._pause_ms = min(2 * self._pause_ms or FIRST_PAUSE_MS, MAX_PAUSE_MS)
            # Half of it up to all of it: workers that were refused together must not come back together.
            share = int(self._clock.new_id()[-_JITTER_DIGITS:], 16) / 16**_JITTER_DIGITS
            self._resumes_ms = self._clock.monotonic_ms() + int(self._pause_ms * (1 + share) / 2)
            return True


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What one request did.

    Attributes:
        failed: The keys that are not known to be gone; all others of the request are.
        overload: What the store asked for patience with, or that it did not answer; ``None``: it did as it was told.
        is_final: Every other request would be answered in the same way.
    """

    failed: Sequence[FailedDelete]
    overload: DeleteFailure | None = None
    is_final: bool = False


def delete_in_batches(
    keys: Sequence[str], send: Callable[[Sequence[str]], BatchAnswer], *, pace: DeletePace, clock: Clock
) -> DeleteReport:
    """Delete keys by as many requests as it takes. Idempotent.

    Args:
        keys: Each once.
        send: Sends one request, once, and returns the outcome for each key. Called by several threads at once.
        pace: Of the store.
        clock: For the waits.

    Returns:
        Deleted keys in the order in which they were given.

    Raises:
        Unavailable: Not one key had a usable answer.
    """
    run = _Run(keys, pace)
    if len(keys) <= MAX_KEYS_PER_DELETE:
        while run.waiting:
            if pause_ms := pace.wait_ms():
                clock.sleep_ms(pause_ms)
            batch, generation = run.take_batch(), pace.generation
            run.note(batch, generation, send(batch))
    else:
        _send_some_at_once(run, send, pace=pace, clock=clock)
    report = run.report()
    if report.failed and not report.deleted and all(each.kind == "unanswered" for each in report.failed):
        raise Unavailable(f"none of {len(keys)} objects could be deleted; the first: {report.failed[0].reason}")
    return report


def _send_some_at_once(
    run: "_Run", send: Callable[[Sequence[str]], BatchAnswer], *, pace: DeletePace, clock: Clock
) -> None:
    sent: dict[Future[BatchAnswer], tuple[Sequence[str], int]] = {}
    with ThreadPoolExecutor(MAX_IN_FLIGHT, thread_name_prefix="icedb-delete") as pool:
        while sent or run.waiting:
            if run.waiting and len(sent) < pace.limit:
                pause_ms = pace.wait_ms()
                if not pause_ms:
                    request = run.take_batch(), pace.generation
                    sent[pool.submit(send, request[0])] = request
                    continue
                if not sent:
                    clock.sleep_ms(pause_ms)
                    continue
            for future in wait(sent, return_when=FIRST_COMPLETED).done:
                run.note(*sent.pop(future), future.result())


class _Run:
    """The keys of one call: waiting for a request, failed, and by default gone."""

    def __init__(self, keys: Sequence[str], pace: DeletePace) -> None:
        self.waiting = deque(keys)
        self._keys = keys
        self._pace = pace
        self._tries: dict[str, int] = {}
        self._failed: dict[str, FailedDelete] = {}
        self._overload_count = 0
        self._has_given_up = False

    def take_batch(self) -> Sequence[str]:
        """Take the keys of the next request. Those that were refused before come last."""
        return [self.waiting.popleft() for _ in range(min(len(self.waiting), MAX_KEYS_PER_DELETE))]

    def note(self, batch: Sequence[str], generation: int, answer: BatchAnswer) -> None:
        """Take note of an answer; keys that may be sent again wait again."""
        if answer.overload is None:
            self._pace.note_answer(generation)
        elif self._pace.note_overload(generation):
            self._overload_count += 1
        if len(answer.failed) < len(batch):
            self._overload_count = 0
        if self._failed:
            for key in batch:
                self._failed.pop(key, None)
        for each in answer.failed:
            self._failed[each.key] = each
            tries = self._tries[each.key] = self._tries.get(each.key, 0) + 1
            if tries < MAX_TRIES.get(each.kind, 1) and not self._has_given_up:
                self.waiting.append(each.key)
        if answer.is_final or (answer.overload and self._overload_count >= MAX_TRIES[answer.overload]):
            self._give_up(answer.failed[0])

    def _give_up(self, why: FailedDelete) -> None:
        """Send nothing more; what waits has failed for the same reason."""
        self._has_given_up = True
        while self.waiting:
            key = self.waiting.popleft()
            self._failed[key] = FailedDelete(key, why.reason, why.kind)

    def report(self) -> DeleteReport:
        """Return what became of each key, in the order in which they were given."""
        deleted = tuple(key for key in self._keys if key not in self._failed)
        return DeleteReport(deleted, tuple(self._failed[key] for key in self._keys if key in self._failed))
