"""What a worker takes from its queue: plain messages for tasks of ours, and nothing else that Celery would do.

A Celery message can say much more than "run this task with these arguments": which messages to send when it is done or
has failed, how long it may take, when to begin, how to unpack it. Whoever may send to Redis would have all of that,
and a message that is malformed in some ways ends the whole worker. So each is looked at before Celery acts on it, and
refused with one line in the log that repeats nothing of it: it may hold rows, and a token. Who waits for its result is
told why: the rows of such a message are staged by nobody.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from celery.states import FAILURE
from celery.worker.consumer import Consumer
from icedb_log.errors import InvalidRequest
from kombu import compression

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


class GuardedConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Celery's consumer, behind :func:`find_problem`."""

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
