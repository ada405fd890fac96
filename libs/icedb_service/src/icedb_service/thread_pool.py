"""A pool of threads for workers without an engine: several tables side by side in one process.

Celery's own, but for one thing: a worker that may reserve no more than it can do asks for no message while all
threads are at work, and its loop sleeps for up to ten seconds. A thread that ends tells it.

Tasks of a pool of threads cannot be killed: who uses it bounds its runs by itself, and says so when one hangs
(:meth:`icedb_service.runs.TaskRunner.check_progress`).
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from celery.concurrency.thread import TaskPool
from kombu.asynchronous.hub import Hub


class WakingThreadPool(TaskPool):  # type: ignore[misc]  # Celery has no types
    """Threads that wake the worker's loop when they have ended a task."""

    _hub: Hub | None = None

    def register_with_event_loop(self, loop: Hub) -> None:
        """Remember the loop; called each time that the worker connects."""
        self._hub = loop

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run a task in a thread."""
        result = super().on_apply(target, args, kwargs, callback, accept_callback, **options)
        # After the task's own callbacks, which free its place: the loop then asks for the next message.
        result.f.add_done_callback(self._wake_loop)
        return result

    def _wake_loop(self, _done: Future[Any]) -> None:
        if self._hub is not None:
            self._hub.call_soon(_look_again)  # type: ignore[no-untyped-call]


def _look_again() -> None:
    """Do nothing: that the loop turns is enough."""
