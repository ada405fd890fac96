"""One batch on its way, and its retries, whatever carries it.

Keeps two rules: what was once sent is sent again under the same id (I1); and not beyond the table's retry window,
after which the flush would refuse it (I3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import Overloaded, StoreRefused, Unavailable
from icedb_log.units import MINUTE_MS, SECOND_MS

from icedb_client.bodies import BatchBody
from icedb_client.transport import EnqueuedBatch, Offer, Transport

DEFAULT_RETRY_MS: Final = 5 * MINUTE_MS
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 5 * SECOND_MS
WINDOW_PARTS_LEFT: Final = 10
"""This fraction of the retry window is left to the last request itself."""


class Undelivered(Unavailable):
    """No attempt to stage a batch was confirmed. What the caller does: the same batch again, under ``batch_id``.

    Attributes:
        batch_id: Its id: one of the attempts may have succeeded all the same.
    """

    def __init__(self, message: str, *, batch_id: str) -> None:
        super().__init__(message)
        self.batch_id = batch_id


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause before a batch is sent again.

    Attributes:
        error: Why the last attempt failed.
        pause_ms: How long the pause is.
    """

    error: Unavailable
    pause_ms: int


class Delivery:
    """One batch on its way, sent again until it is in or its time is over.

    Args:
        transport: What carries it.
        table: Name of the table.
        body: What is sent.
        retry_ms: How long to go on after the first failure. Never beyond the table's retry window.
        on_wait: Told before each pause.
        batch_id: Its id, if it may have been sent before.
        key: What the batch is accepted once for (I7); None: each call makes a batch.
        is_patient: Whether it goes on where only a person can help (no permission, no space): for programs that run on.

    Attributes:
        batch_id: Its id: nothing was accepted while this is ``None``. Empty if a front end chooses it, by the key.
    """

    def __init__(
        self,
        transport: Transport,
        table: str,
        body: BatchBody,
        *,
        retry_ms: int = DEFAULT_RETRY_MS,
        on_wait: Callable[[Wait], None] | None = None,
        batch_id: str | None = None,
        key: str | None = None,
        is_patient: bool = False,
    ) -> None:
        self.batch_id: str | None = None
        self._transport = transport
        self._table = table
        self._body = body
        self._given_id = batch_id
        self._key = key
        self._is_patient = is_patient
        self._on_wait = on_wait
        self._end_ms = transport.clock.monotonic_ms() + retry_ms
        self._offer: Offer | None = None
        self._offer_end_ms = self._end_ms
        self._may_be_accepted = batch_id is not None

    def run(self) -> EnqueuedBatch:
        """Deliver the batch.

        Raises:
            Overloaded: The table had no room in time; nothing was accepted.
            Undelivered: No attempt was confirmed in time. Send it again only under its id.
            Unavailable: The table could not be looked at in time; nothing was sent.
            StoreRefused: At once, unless it is patient: nothing was accepted.
            InvalidRequest: Refused for good; or the key stands for other content, or nobody can tell any more whether
                its batch was accepted.
            NotFound: No such table.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                offer = self._offer or self._begin()
                return self._send(offer)
            except Unavailable as error:
                clock = self._transport.clock
                left_ms = min(self._end_ms, self._offer_end_ms) - clock.monotonic_ms()
                if left_ms <= 0 or (isinstance(error, StoreRefused) and not self._is_patient):
                    if self.batch_id is None or not self._may_be_accepted:
                        raise
                    raise Undelivered(str(error), batch_id=self.batch_id) from error
                pause_ms = min(left_ms, _pause_ms(error, attempt))
                if self._on_wait is not None:
                    self._on_wait(Wait(error, pause_ms))
                clock.sleep_ms(pause_ms)

    def _begin(self) -> Offer:
        """Let the table take the batch: the retry window begins with its id (I3)."""
        clock = self._transport.clock
        self._offer_end_ms = self._end_ms
        offer = self._transport.begin(self._table, self._body, batch_id=self._given_id, key=self._key)
        age_ms = clock.now_ms() - parse_uuid7_ms(offer.batch_id) if offer.batch_id else 0
        window_ms = offer.retry_window_ms - offer.retry_window_ms // WINDOW_PARTS_LEFT - max(0, age_ms)
        self._offer_end_ms = clock.monotonic_ms() + window_ms
        self._offer, self.batch_id = offer, offer.batch_id
        return offer

    def _send(self, offer: Offer) -> EnqueuedBatch:
        try:
            return self._transport.send(offer)
        except Overloaded:
            if not self._may_be_accepted:  # its id is free again, and its window does not pass while it waits
                self._offer = self.batch_id = None
                self._offer_end_ms = self._end_ms
            raise
        except StoreRefused:
            raise
        except Unavailable:
            # WARN: from here on never under another id: the rows would be committed twice.
            self._may_be_accepted = True
            raise


def _pause_ms(error: Unavailable, attempt: int) -> int:
    if isinstance(error, Overloaded):
        return max(FIRST_PAUSE_MS, error.retry_after_ms)
    return max(min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(attempt - 1, 16)), error.retry_after_ms or 0)
