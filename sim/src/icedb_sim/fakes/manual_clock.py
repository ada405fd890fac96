"""A clock that moves only when told, and remembers every sleep."""

from icedb_sim.fakes.fake_clock import FakeClock


class ManualClock(FakeClock):
    """A :class:`~icedb_sim.fakes.fake_clock.FakeClock` that tests ask how long was slept.

    Attributes:
        slept_ms: Every sleep, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slept_ms: list[int] = []

    def sleep_ms(self, duration_ms: int) -> None:
        """Move on at once."""
        self.slept_ms.append(duration_ms)
        super().sleep_ms(duration_ms)
