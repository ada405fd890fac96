"""Who is told of each request to a store that is paid for: by the class of its price, the table, and its bytes.

Told where requests are sent, in the process that sends them, one by one: also those that were sent again, each part of
a large file, and those that were answered by "not there". What S3 answers with 5xx it asks nothing for, and what was
never answered nobody knows: neither is told here; :mod:`icedb_log.store.request_failures` tells of both. A directory
asks for nothing.

The table stands in the key. It becomes a label of metrics, so a name counts only when the store has answered with an
object of that table, or has taken one: whoever asks for names that do not exist makes no labels.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from icedb_log.keys import find_table

Price = Literal["put", "get", "delete"]
PRICES: Final[tuple[Price, ...]] = get_args(Price)
"""Classes of requests by what S3 asks for them. put: also copies, parts of uploads, and listings; get: also of
metadata; delete: also ends of uploads: free."""

MAX_TABLES: Final = 10_000
"""That a process tells by name; requests of others count without one."""

_HTTP_OK: Final = (200, 206)
_HTTP_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Requests of one kind.

    Attributes:
        table: Whose objects they were for; empty: of none that is known to exist, or of several.
        price: Class of their price.
        sent_bytes: In their bodies.
        received_bytes: In the bodies of their answers.
        count: How many.
    """

    table: str
    price: Price
    sent_bytes: int = 0
    received_bytes: int = 0
    count: int = 1


Listener = Callable[[RequestCost], None]

_listeners: list[Listener] = []
_tables: set[str] = set()
_lock = threading.Lock()


def listen_to_costs(listener: Listener) -> None:
    """Have a function called for each request of this process, from any thread; it must not raise."""
    with _lock:
        _listeners.append(listener)


def stop_listening_to_costs(listener: Listener) -> None:
    """Undo :func:`listen_to_costs`. Idempotent."""
    with _lock:
        _listeners[:] = [other for other in _listeners if other != listener]


def report_cost(cost: RequestCost) -> None:
    """Tell everybody of requests."""
    for listener in tuple(_listeners):
        listener(cost)


def report_answer(
    price: Price, key: str, *, status: int, is_listing: bool = False, sent_bytes: int, received_bytes: int
) -> None:
    """Tell everybody of one answered request.

    Args:
        price: Class of its price.
        key: Of its object, or what the keys of a listing begin with; more may stand before it.
        status: Of the answer.
        is_listing: Whether it was one: of what is not there, too, it is answered with 200.
        sent_bytes: In its body.
        received_bytes: In the body of its answer.
    """
    if not _listeners or status >= _HTTP_SERVER_ERROR:
        return
    table = find_table(key)
    if table and table not in _tables:
        if is_listing or price == "delete" or status not in _HTTP_OK or len(_tables) >= MAX_TABLES:
            table = ""
        else:
            with _lock:
                _tables.add(table)
    report_cost(RequestCost(table, price, sent_bytes, received_bytes))
