"""What a worker takes from its queue: envelopes as kombu writes them, with plain messages for tasks of ours.

Whoever may write to Redis may push any bytes into a queue. kombu takes an entry off the list and only then finds out
whether it is JSON with all that it looks up in it; if it is not, the exception ends the worker, or keeps it from
starting. And a Celery message can say much more than "run this task with these arguments": which messages to send when
it is done or has failed, how long it may take, when to begin, how to unpack it.

So each entry is looked at as soon as Redis has answered, and each message before Celery acts on it; what is refused is
dropped with one line in the log that repeats nothing of it: it may hold rows, and a token. Who waits for the result of
a message is told why: the rows of such a message are staged by nobody.
"""

import binascii
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from celery.states import FAILURE
from celery.utils.dispatch import Signal
from celery.worker import state
from celery.worker.consumer import Consumer
from icedb_log.errors import InvalidRequest
from kombu import compression
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, Transport
from kombu.utils.json import loads

from icedb_service.logs import get_logger

OUR_TASKS: Final = "icedb."
MAX_ID_CHARS: Final = 128
_SHOWN_CHARS: Final = 80
_PARTS: Final = 3
_NO_LIMITS: Final = [None, None]
_FIXED: Final[Mapping[str, object]] = {
    "stamps": {},
    **dict.fromkeys(("eta", "shadow", "chord", "compression", "stamped_headers")),
}
"""Headers by which a sender would decide what is the worker's to decide, with the value that says nothing."""


RECONNECT_MAX_S: Final = 3
"""Longest pause between two tries to reach Redis. Celery's own grow to 30 s: work would go on so much later."""

loop_turned: Final = Signal(name="icedb_loop_turned")
"""Sent each time that the loop of this process's worker comes round, also while it tries to reach Redis again."""


class GuardedConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Celery's consumer, behind :func:`find_problem`; it is soon back after Redis was away."""

    def ensure_connected(self, conn: Any) -> Any:
        """Return a connection that is open; tries for as long as it takes."""

        def tell_failed(error: Exception, pause_s: float) -> None:
            get_logger().warning("queue_unavailable", error=str(error), retry_in_ms=round(pause_s * 1000))

        def come_round() -> None:
            loop_turned.send(sender=self)
            state.maybe_shutdown()

        connected = conn.ensure_connection(
            tell_failed, None, interval_start=1, interval_step=1, interval_max=RECONNECT_MAX_S, callback=come_round
        )
        self.first_connection_attempt = False
        self.broker_connection_retry_attempt = 0
        return connected

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Any:
        """Return what is called with each message."""
        handle = super().create_task_handler(*args, **kwargs)

        def take(message: Any) -> Any:
            problem = find_problem(message, known=self.strategies)
            if problem is None:
                # Celery writes the limits of the sender's own application into messages: these say nothing here.
                message.headers["timelimit"] = _NO_LIMITS
                return handle(message)
            get_logger().warning(
                "message_refused",
                reason=problem,
                mitigation="it is dropped: a sweep makes a wake-up good, rows have to be sent again, without this",
            )
            self._tell_sender(message, problem)
            return message.reject_log_error(get_logger(), self.connection_errors)

        return take

    def _tell_sender(self, message: Any, problem: str) -> None:
        """Make the result of a refused message a failure, for whoever waits for it. Never raises."""
        try:
            headers = message.headers
            if not headers.get("ignore_result") and headers.get("task") in self.strategies and is_id(headers["id"]):
                self.app.backend.store_result(headers["id"], InvalidRequest(problem), FAILURE)
        except Exception as error:  # noqa: BLE001 - as below
            get_logger().info("refusal_not_told", error=type(error).__name__)


def find_problem(message: Any, *, known: Collection[str]) -> str | None:
    """Return why a message is not taken, ``None`` if it is in order. Never raises.

    Args:
        message: As kombu has received it.
        known: Names of the tasks of this worker; Celery's own among them do not count.
    """
    try:
        headers = message.headers
        if not isinstance(headers, Mapping):
            return "it has no headers"
        task, task_id = headers.get("task"), headers.get("id")
        if not isinstance(task, str) or not task.startswith(OUR_TASKS) or task not in known:
            return f"task {str(task)[:_SHOWN_CHARS]!r} is none of this worker's"
        if not is_id(task_id):
            return f"a message for {task} has no usable id"
        return _find_header_problem(task, headers) or _find_body_problem(task, message)
    except Exception as error:  # noqa: BLE001 - whatever a message does to its reader, the worker goes on
        return f"it cannot be read ({type(error).__name__})"


def is_id(value: object) -> bool:
    """Whether a value of a message can be an identifier: short, and of characters that can be shown."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= MAX_ID_CHARS


def _find_header_problem(task: str, headers: Mapping[str, Any]) -> str | None:
    for name, nothing in _FIXED.items():
        if headers.get(name) not in (None, nothing):
            return f"a message for {task} says {name}, which is not the sender's to say"
    expires = headers.get("expires")
    if expires is not None:
        datetime.fromisoformat(expires)
    for name in ("root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "origin"):
        if not isinstance(headers.get(name), str | None):
            return f"a message for {task} has a {name} that is no text"
    retries = headers.get("retries")
    if retries is not None and (not isinstance(retries, int) or retries < 0):
        return f"a message for {task} has retries that are no count"
    return None


def _find_body_problem(task: str, message: Any) -> str | None:
    body = message.decode()
    if not isinstance(body, list | tuple) or len(body) != _PARTS:
        return f"a message for {task} has no arguments where they belong"
    args, kwargs, more = body
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(more, dict | None):
        return f"a message for {task} has no arguments where they belong"
    wanted = sorted(str(name)[:_SHOWN_CHARS] for name, value in (more or {}).items() if value)
    if wanted:
        return f"a message for {task} wants more to be run after it ({', '.join(wanted[:4])})"
    return None


def refuse_compression() -> None:
    """Make this process refuse compressed messages: nothing of ours is one, and a small one may unpack to much."""

    def refuse(*_ignored: object) -> NoReturn:
        raise ValueError("compressed messages are not taken: send them as they are")

    for content_type in compression.encoders():  # type: ignore[no-untyped-call]
        compression.register(refuse, refuse, content_type)  # type: ignore[no-untyped-call]


MAX_LEVELS: Final = 16
"""How deep an envelope may be nested; those of senders have four levels."""

_ENCODINGS: Final = (None, "base64")
_PLACES: Final = ("exchange", "routing_key")
_TEXTS: Final = ("body", "content-type", "content-encoding")

Popped: TypeAlias = tuple[bytes, bytes] | None
"""What Redis has taken from a queue: the queue's name and the entry, or nothing."""


class GuardedChannel(Channel):
    """kombu's channel on Redis, behind :func:`find_entry_problem`."""

    def _create_client(self, *args: Any, **kwargs: Any) -> Any:
        client = super()._create_client(*args, **kwargs)  # type: ignore[no-untyped-call]
        client.set_response_callback("BRPOP", partial(_keep_envelope, client.response_callbacks["BRPOP"]))
        return client


class GuardedTransport(Transport):
    """kombu's transport over Redis, with :class:`GuardedChannel`."""

    Channel = GuardedChannel


def guard_queues() -> None:
    """Make connections to Redis that this process opens from now on drop entries that are no messages. Idempotent."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{GuardedTransport.__name__}"


def find_entry_problem(entry: bytes) -> str | None:
    """Return why an entry of a queue is no message, ``None`` if kombu can take it. Never raises."""
    try:
        envelope = loads(entry)  # type: ignore[no-untyped-call]
        if not isinstance(envelope, Mapping):
            return "it is no envelope"
        if not _is_plain(envelope, MAX_LEVELS):
            return "it is nested too deep, or has values of kombu's own types"
        return _find_envelope_problem(envelope)
    except Exception as error:  # noqa: BLE001 - whatever an entry does to its reader, the worker goes on
        return f"it cannot be read ({type(error).__name__})"


def _find_envelope_problem(envelope: Mapping[str, Any]) -> str | None:
    headers, properties = envelope.get("headers"), envelope.get("properties")
    if not isinstance(headers, Mapping) or not isinstance(headers.get("compression"), str | None):
        return "it has no headers, or none that can be read"
    if not isinstance(properties, Mapping) or not is_id(properties.get("delivery_tag")):
        return "it has no usable delivery_tag"
    delivery = properties.get("delivery_info")
    if not isinstance(delivery, Mapping) or not all(isinstance(delivery.get(name), str) for name in _PLACES):
        return "it does not say where it was sent"
    encoding, body = properties.get("body_encoding"), envelope.get("body")
    if encoding not in _ENCODINGS or not all(isinstance(envelope.get(name), str | None) for name in _TEXTS):
        return "its body is no text, or encoded in a way that we do not know"
    if body and encoding:
        binascii.a2b_base64(body)
    return None


def _is_plain(value: object, levels: int) -> bool:
    """Whether a value can be written again as it was: kombu does so when it notes what it has taken."""
    if isinstance(value, dict):
        return levels > 0 and all(_is_plain(each, levels - 1) for each in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(each, levels - 1) for each in value)
    return isinstance(value, str | int | float | None)


def _keep_envelope(read: Callable[..., Popped], response: Any, **options: Any) -> Popped:
    """Return what was popped; nothing instead of an entry that is no message."""
    popped = read(response, **options)
    if popped is None:
        return None
    problem = find_entry_problem(popped[1])
    if problem is None:
        return popped
    get_logger().warning(
        "message_refused",
        reason=f"an entry of the queue is no message: {problem}",
        mitigation="it is dropped; see who may write to this Redis",
    )
    return None
