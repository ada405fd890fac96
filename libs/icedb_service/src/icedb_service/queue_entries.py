"""What may lie in a queue: an envelope as senders' kombu writes it. Anything else is dropped before kombu acts on it.

Whoever may write to Redis may push any bytes into a queue. kombu takes an entry off the list and only then finds out
whether it is JSON with all that it looks up in it; if it is not, the exception ends the worker, or keeps it from
starting. So each entry is looked at as soon as Redis has answered, and dropped with one line in the log that repeats
nothing of it: it may hold rows, and a token. What an envelope says is looked at later, by
:mod:`icedb_service.message_guard`.
"""

import binascii
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, Transport
from kombu.utils.json import loads

from icedb_service.logs import get_logger
from icedb_service.message_guard import is_id

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
