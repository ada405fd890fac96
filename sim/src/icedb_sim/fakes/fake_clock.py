"""A clock that a test moves by hand: time stands still until somebody sleeps or advances it."""

import hashlib

from icedb_log.clock import make_uuid7_hex

DEFAULT_START_MS = 1_700_000_000_000
_ID_BITS = 74


class FakeClock:
    """Time and identifiers of one actor; the same seed and the same calls give the same ids.

    Args:
        start_ms: Wall clock at the beginning, unix ms.
        seed: Actors with different seeds never make the same id.
    """

    def __init__(self, start_ms: int = DEFAULT_START_MS, *, seed: str = "") -> None:
        self._wall_ms = start_ms
        self._elapsed_ms = 0
        self._seed = seed
        self._id_count = 0

    def now_ms(self) -> int:
        """Return the wall clock."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """Return the milliseconds that passed since the clock was made; :meth:`set_wall` does not move it."""
        return self._elapsed_ms

    def sleep_ms(self, duration_ms: int) -> None:
        """Let the time pass at once."""
        self.advance(duration_ms)

    def new_id(self) -> str:
        """Return a UUIDv7 in hex whose random part follows from the seed and the number of the call."""
        self._id_count += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._id_count}".encode(), digest_size=16).digest()
        return make_uuid7_hex(self._wall_ms, int.from_bytes(digest) >> (len(digest) * 8 - _ID_BITS))

    def advance(self, duration_ms: int) -> None:
        """Let time pass on both clocks."""
        self._wall_ms += duration_ms
        self._elapsed_ms += duration_ms

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock alone, as a step of a time daemon or a wrong host clock does."""
        self._wall_ms = wall_ms
