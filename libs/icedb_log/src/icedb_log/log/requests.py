"""Requests for changes of rows that the log remembers: which were carried out, and what came of it (rule M7).

Who asks for a deletion or a rewrite gives it an id. The commit says it, with what it did; whatever folds the commit's
log file carries that on, for two days. So a request that is repeated, because its answer got lost or a queue delivered
it twice, finds the first one's outcome and changes nothing. An id is taken for a day, by the store's clock: one that is
older might be forgotten already.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from icedb_log.clock import format_ms, parse_uuid7_ms
from icedb_log.errors import InvalidRequest
from icedb_log.model import ListedLogHead, LogHeads
from icedb_log.units import DAY_MS

REQUEST_AGE_MS: Final = DAY_MS
"""How long after the time in its id a request may be carried out."""
REQUEST_MEMORY_MS: Final = 2 * DAY_MS
"""How long after it the log says so. Longer, so that no commit that may still be repeated is forgotten."""
MAX_AHEAD_MS: Final = DAY_MS
"""How far the clock that made the id may be ahead of the store's: the log says so much longer what was done."""
_DIGEST_DIGITS: Final = 32

Outcomes = Mapping[str, Mapping[str, Any]]
"""By id: ``of``, what was asked for (:attr:`ChangeRequestId.digest`); ``log``, the name of the commit's log file; and
figures of what it did, as the result of a task has them."""


@dataclass(frozen=True, slots=True)
class ChangeRequestId:
    """What tells a request for a change from others. Make it with :meth:`of`.

    Attributes:
        request_id: A UUIDv7.
        digest: Of what is asked for.
    """

    request_id: str
    digest: str

    @classmethod
    def of(cls, request_id: str, *asked: object) -> Self:
        """Return it. Raises InvalidRequest: the id is not a UUIDv7."""
        try:
            parse_uuid7_ms(request_id)
        except InvalidRequest:
            raise InvalidRequest(
                f"id {request_id[:80]!r} of a change is no UUIDv7: give the one that the earlier run named, or none"
            ) from None
        return cls(request_id, hashlib.sha256(orjson.dumps(asked)).hexdigest()[:_DIGEST_DIGITS])

    def find_outcome(self, log: LogHeads) -> Mapping[str, Any] | None:
        """Return what came of the request, if the log says that it was carried out.

        Raises:
            InvalidRequest: Its id was used for something else.
        """
        found = (file.log.requests[self.request_id] for file in log.files if self.request_id in file.log.requests)
        outcome = next(found, None)
        if outcome is not None and outcome.get("of") != self.digest:
            raise InvalidRequest(
                f"table {log.table}: id {self.request_id} was given to another change, which was made: nothing was "
                "changed now; leave the id out, or ask for that change again"
            )
        return outcome

    def require_young(self, log: LogHeads) -> None:
        """Require that the log would say whether the request was carried out (M7). Raises InvalidRequest."""
        made_ms = parse_uuid7_ms(self.request_id)
        if -MAX_AHEAD_MS <= log.store_now_ms - made_ms < REQUEST_AGE_MS:
            return
        raise InvalidRequest(
            f"table {log.table}: id {self.request_id} is of {format_ms(made_ms)}, and by the store it is "
            f"{format_ms(log.store_now_ms)}: ids are taken for a day. Look with `icedb changes {log.table}` whether "
            "the change was made, and if not, ask under a fresh one; a clock that is wrong makes such ids, too"
        )


def is_forgotten(request_id: str, now_ms: int) -> bool:
    """Return whether the log need not say any more that a request was carried out."""
    return now_ms >= parse_uuid7_ms(request_id) + REQUEST_MEMORY_MS


def find_requests(files: Iterable[ListedLogHead], *, now_ms: int) -> dict[str, Mapping[str, Any]]:
    """Return what some log files say of requests, but for those that may be forgotten by the store's clock."""
    return {
        request_id: outcome
        for file in files
        for request_id, outcome in file.log.requests.items()
        if not is_forgotten(request_id, now_ms)
    }
