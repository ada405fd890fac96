"""The one base of all Celery tasks, and how a service declares one.

A task is a function of the table's name (or of nothing, for sweeps) that returns :class:`~icedb_service.runs.Work`.
The base takes in the wake-up, makes sure that the engine lives, runs it and returns a JSON result.

Delivery, for every task: at most once for a message (early acknowledgement), any number of times for a piece of
work, possibly at once. Each task says in its docstring why that is harmless.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, get_type_hints

from celery import Celery, Task
from icedb_log.errors import InvalidRequest
from icedb_log.names import TASKS
from pydantic import ConfigDict, TypeAdapter, ValidationError

from icedb_service.access.credentials import Needs, TaskAccess, needs_nothing
from icedb_service.logs import get_logger
from icedb_service.runs import TaskRunner, Work
from icedb_service.wakeup import Wakeups

EX_RECYCLE: Final = 0x9B
"""Exit code that the pool takes for an orderly replacement of a child."""


_STRICT: Final = ConfigDict(strict=True, arbitrary_types_allowed=True)


class TaskContext(Protocol):
    """What tasks find in the process that runs them."""

    @property
    def runner(self) -> TaskRunner:
        """Runs and accounts."""
        ...

    @property
    def wakeups(self) -> Wakeups:
        """Sends and takes in wake-ups."""
        ...

    @property
    def access(self) -> TaskAccess:
        """Says whether the sender of a message may have it done."""
        ...

    def is_engine_alive(self) -> bool:
        """Whether this process can still work; if not, it has to be replaced."""
        ...


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """All that can be said about a task. A misspelt or unknown option is an error.

    Attributes:
        name: One of :data:`icedb_log.names.TASKS`.
        needs_engine: Whether a dead engine (Spark session) makes the task impossible.
        needs: What its arguments ask for; nothing, if the task does what the periodic sweep does.
    """

    name: str
    needs_engine: bool = True
    needs: Needs = field(default=needs_nothing)

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise InvalidRequest(f"task {self.name!r} is unknown; known: {', '.join(sorted(TASKS))}")


class IceDBTask(Task):  # type: ignore[misc]  # Celery has no types
    """Base of all tasks; :func:`define_task` makes one."""

    abstract = True
    acks_late = False
    ignore_result = False
    context: TaskContext
    options: TaskOptions
    signature_of_run: inspect.Signature
    types_of_arguments: Mapping[str, TypeAdapter[Any]]

    def __call__(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run once for a message; returns the JSON result, never raises an error of ours."""
        table = args[0] if args else kwargs.get("table")
        table = table if isinstance(table, str) else None
        self.context.wakeups.release(self.options.name, table)
        if self.options.needs_engine and not self.context.is_engine_alive():
            self._make_room(table)
        return self.context.runner.run(
            lambda: self._work(args, kwargs), task=self.options.name, task_id=str(self.request.id), table=table
        )

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
        try:
            bound = self.signature_of_run.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest(f"{self.options.name}{self.signature_of_run}: {error}") from error
        for name, value in bound.arguments.items():
            self._check_argument(name, value)
        self.context.access.require(self.request, self.options.needs(bound.arguments))
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
            raise InvalidRequest(f"{self.options.name}: argument {name}: {found}; {self.signature_of_run}") from None

    def _make_room(self, table: str | None) -> None:
        """Leave the process, so that the pool starts one with a fresh engine; the work is woken again."""
        get_logger().error(
            "engine_lost",
            task=self.options.name,
            table=table,
            mitigation="this process is replaced, the task woken again",
        )
        self.context.wakeups.try_wake(self.options.name, table)
        raise SystemExit(EX_RECYCLE)


def define_task(app: Celery, context: TaskContext, options: TaskOptions, function: Callable[..., Work]) -> IceDBTask:
    """Register a task.

    Args:
        app: The worker's application.
        context: Where the task finds its runner and wake-ups; opened in the child process.
        options: Its name and needs.
        function: The work; its docstring states the delivery contract.
    """
    if not (function.__doc__ or "").strip():
        raise InvalidRequest(f"task {options.name} has no docstring; state its delivery contract there")

    def run(_self: IceDBTask, /, *args: Any, **kwargs: Any) -> Work:
        return function(*args, **kwargs)

    signature = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    hints = {name: hint for name, hint in get_type_hints(function).items() if name in signature.parameters}
    kind = type(
        options.name,
        (IceDBTask,),
        {
            "name": options.name,
            "run": run,
            "context": context,
            "options": options,
            "signature_of_run": signature,
            "types_of_arguments": {name: TypeAdapter(hint, config=_STRICT) for name, hint in hints.items()},
            "__doc__": function.__doc__,
            "__module__": function.__module__,
        },
    )
    task: IceDBTask = app.register_task(kind())
    return task
