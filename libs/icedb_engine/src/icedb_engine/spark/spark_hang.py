"""Ends a JVM that answers nothing, so that whoever waits for it gets an error, and not nothing for ever.

A call of PySpark waits for the JVM's answer without any limit: a JVM that hangs (stopped, out of memory, a disk that is
gone) would hold the worker until Celery's own limit, an hour. A job may take long, but the JVM answers beside it.

WARN: only a JVM of this process is ended. A Spark Connect server is others', and its client has limits of its own.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog
from pyspark import SparkContext

_log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 15.0
ANSWER_LIMIT_S: Final = 60.0
"""How long one round trip may take before the JVM is ended: far more than any pause of its garbage collector."""


def answers_within(ask: Callable[[], bool], limit_s: float) -> bool:
    """Whether ``ask`` says yes in time. One that hangs is left to itself, in a thread that holds up no end."""
    said: list[bool] = []
    asking = threading.Thread(target=lambda: said.append(ask()), name="ask the JVM", daemon=True)
    asking.start()
    asking.join(limit_s)
    return said == [True]


class HangWatch:
    """Looks every few seconds whether this process's JVM answers, until it is closed or the JVM is gone.

    Args:
        ask: Makes one round trip, and says whether it was answered; returns soon if the JVM is dead.
        every_s: Between two looks.
        limit_s: How long a round trip may take.
    """

    def __init__(
        self, ask: Callable[[], bool], *, every_s: float = LOOK_EVERY_S, limit_s: float = ANSWER_LIMIT_S
    ) -> None:
        self._ask = ask
        self._every_s = every_s
        self._limit_s = limit_s
        self._closing = threading.Event()
        self._process: Any = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no public word for its JVM
        if self._process is not None:
            threading.Thread(target=self._look, name="watch the JVM", daemon=True).start()

    def close(self) -> None:
        """Look no more. The JVM may be gone by now."""
        self._closing.set()

    def _look(self) -> None:
        while not self._closing.wait(self._every_s) and self._process.poll() is None:
            if answers_within(self._answered, self._limit_s) or self._closing.is_set():
                continue
            _log.error(
                "jvm hangs",
                limit_s=self._limit_s,
                mitigation="the JVM is ended; its job fails and is done again, this process is replaced",
            )
            with contextlib.suppress(OSError):
                self._process.kill()
            return

    def _answered(self) -> bool:
        self._ask()
        return True  # be it that it is dead: that is seen elsewhere, and nothing has to be ended
