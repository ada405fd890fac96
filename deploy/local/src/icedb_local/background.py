"""Threads that live as long as a ``with`` block, and are told to stop at its end."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self


class BackgroundThread(ABC):
    """A thread that works until it is told to stop; use as a context manager, once.

    Leaving the block waits for what the thread is doing. An error ends the thread and no other: subclasses catch what
    they expect.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ask_to_stop()
        self._thread.join()

    def ask_to_stop(self) -> None:
        """Have the thread end soon; returns at once. Idempotent."""
        self._stop.set()

    @abstractmethod
    def _run(self) -> None:
        """Work; return soon after ``self._stop`` is set."""


@contextlib.contextmanager
def running_together(threads: Sequence[BackgroundThread]) -> Iterator[None]:
    """Run several threads in a block; at its end all are told to stop before any is waited for."""
    with contextlib.ExitStack() as exits:
        for thread in threads:
            exits.enter_context(thread)
        try:
            yield
        finally:
            for thread in threads:
                thread.ask_to_stop()
