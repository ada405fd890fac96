"""The one base of all Celery tasks, and how a service declares one.

A task is a function of the table's name (or of nothing, for sweeps) that returns :class:`~icedb_service.runs.Work`.
The base takes in the wake-up, makes sure that the engine lives, runs it and returns a JSON result.

Delivery, for every task: at most once for a message (early acknowledgement), any number of times for a piece of
work, possibly at once. Each task says in its docstring why that is harmless.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, get_type_hints

from celery import Celery, Task
from icedb_log.errors import InvalidRequest
from icedb_log.names import PROGRESS_HEADER, TASKS
from icedb_log.phases import following
from icedb_log.results import Work
from icedb_log.units import SECOND_MS
from pydantic import ConfigDict, TypeAdapter, ValidationError

from icedb_service.access.credentials import Needs
from icedb_service.logs import get_logger
from icedb_service.tracing import HEADER, header_of
from icedb_service.worker import EX_RECYCLE, WorkerContext

_STRICT: Final = ConfigDict(strict=True, arbitrary_types_allowed=True)


class IceDBTask(Task):  # type: ignore[misc]  # Celery has no types
    """Base of all tasks; :func:`define_task` makes one."""

    abstract = True
    acks_late = False
    ignore_result = False
    context: WorkerContext[Any]
    needs_engine: bool
    needs: Needs | None
    signature_of_run: inspect.Signature
    types_of_arguments: Mapping[str, TypeAdapter[Any]]

    def __call__(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run once for a message; returns the JSON result, never raises an error of ours."""
        table = args[0] if args else kwargs.get("table")
        table = table if isinstance(table, str) else None
        self.context.wakeups.release(self.name, table)
        if self.needs_engine and not self.context.is_engine_alive():
            self._make_room(table)
        with self._told_to_who_waits():
            return self.context.runner.run(
                lambda: self._work(args, kwargs),
                task=self.name,
                task_id=str(self.request.id),
                table=table,
                traceparent=header_of(self.request, HEADER),
            )

    def _told_to_who_waits(self) -> AbstractContextManager[None]:
        """Say how far the run is, if the message asked for it: once a second, until Redis does not answer."""
        if header_of(self.request, PROGRESS_HEADER) is None:
            return nullcontext()
        task_id, clock, next_ms = str(self.request.id), self.context.clock, 0

        def tell(what: str, done: int, total: int) -> None:
            nonlocal next_ms
            now_ms = clock.monotonic_ms()
            if now_ms >= next_ms:
                is_noted = self.context.wakeups.note_progress(task_id, what, done, total)
                next_ms = now_ms + (SECOND_MS if is_noted else sys.maxsize)

        return following(tell)

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
        try:
            bound = self.signature_of_run.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest(f"{self.name}{self.signature_of_run}: {error}") from error
        for name, value in bound.arguments.items():
            self._check_argument(name, value)
        if self.needs is not None:
            for need in self.needs(bound.arguments):
                self.context.access.require(self.request, need.verb, need.table)
        work: Work = self.run(*args, **kwargs)
        return work

    def _check_argument(self, name: str, value: Any) -> None:
        """Refuse a value of another type than the task's: the text ``"false"`` would count as true."""
        known = self.types_of_arguments.get(name)
        if known is None:
            return
        try:
            known.validate_python(value)
        except (ValidationError, RecursionError) as error:
            found = f"is {type(value).__name__}"
            if isinstance(error, ValidationError):
                found = str(error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"])
            raise InvalidRequest(f"{self.name}: argument {name}: {found}; {self.signature_of_run}") from None

    def _make_room(self, table: str | None) -> None:
        """Leave the process, so that the pool starts one with a fresh engine; the work is woken again."""
        get_logger().error(
            "engine_lost",
            task=self.name,
            table=table,
            mitigation="this process is replaced, the task woken again",
        )
        self.context.wakeups.try_wake(self.name, table)
        raise SystemExit(EX_RECYCLE)


def define_task(
    app: Celery,
    context: WorkerContext[Any],
    name: str,
    function: Callable[..., Work],
    *,
    needs: Needs | None = None,
    needs_engine: bool = True,
) -> IceDBTask:
    """Register a task of :data:`icedb_log.names.TASKS`; the docstring of its work states the delivery contract.

    One without needs does what the periodic sweep does. One that needs an engine (a Spark session) is impossible where
    that is dead.
    """
    if name not in TASKS:
        raise InvalidRequest(f"task {name!r} is unknown; known: {', '.join(sorted(TASKS))}")
    if not (function.__doc__ or "").strip():
        raise InvalidRequest(f"task {name} has no docstring; state its delivery contract there")

    def run(_self: IceDBTask, /, *args: Any, **kwargs: Any) -> Work:
        return function(*args, **kwargs)

    signature = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    hints = {name: hint for name, hint in get_type_hints(function).items() if name in signature.parameters}
    attributes = {
        "name": name,
        "run": run,
        "context": context,
        "needs": staticmethod(needs) if needs else None,
        "needs_engine": needs_engine,
        "signature_of_run": signature,
        "types_of_arguments": {name: TypeAdapter(hint, config=_STRICT) for name, hint in hints.items()},
        "__doc__": function.__doc__,
        "__module__": function.__module__,
    }
    task: IceDBTask = app.register_task(type(name, (IceDBTask,), attributes)())
    return task
