"""The only reader of time and randomness.

Owns the clock and the identifiers of commits, files and batches. Nothing else in the project may call
``time.time``, ``datetime.now``, ``random`` or ``uuid``: a test, and the simulation, replace this.

Time of a *committer* is only a hint (rule J1): what decides about deletes is the store's own clock, which
comes with each listing (:class:`icedb_log.store.object_store.ObjectPage`).
"""

import re
import secrets
import time
import uuid
from datetime import UTC, datetime
from typing import Final, Protocol

from icedb_log.errors import InvalidRequest

UUID_VERSION_OF_BATCHES = 7
_TIME_DIGITS: Final = 12
_UUID7_HEX: Final = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")
_BATCH_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def format_ms(time_ms: int) -> str:
    """Return unix milliseconds for people: ``2023-06-07T08:09:10.123Z``; outside the calendar as the number it is."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms, outside the years 1 to 9999"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock(Protocol):
    """Time and identifiers for one actor."""

    def now_ms(self) -> int:
        """Return this host's wall clock as unix milliseconds. May jump, may be wrong by minutes."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that never run backwards, from an arbitrary start."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for at least ``duration_ms`` milliseconds."""
        ...

    def new_id(self) -> str:
        """Return 32 lower-case hex digits, unique, sorting by time of creation (a UUIDv7 without dashes)."""
        ...


class SystemClock:
    """The clock of this host."""

    def now_ms(self) -> int:
        """Return the host's unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return the host's monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep on the host's clock."""
        time.sleep(duration_ms / 1000)

    def new_id(self) -> str:
        """Return a fresh UUIDv7 in hex."""
        return make_uuid7_hex(self.now_ms(), secrets.randbits(74))


def make_uuid7_hex(unix_ms: int, random_bits: int) -> str:
    """Build a UUIDv7 (RFC 9562, section 5.7) as 32 lower-case hex digits.

    Args:
        unix_ms: Unix time in milliseconds, 48 bits.
        random_bits: 74 random bits; more are cut off.
    """
    rand_a = (random_bits >> 62) & 0xFFF
    rand_b = random_bits & ((1 << 62) - 1)
    value = (unix_ms & ((1 << 48) - 1)) << 80 | UUID_VERSION_OF_BATCHES << 76 | rand_a << 64 | 0b10 << 62 | rand_b
    return f"{value:032x}"


def uuid7_hex_ms(value: str) -> int | None:
    """Return the unix milliseconds inside 32 lower-case hex digits of a UUIDv7; ``None``: it is none."""
    return int(value[:_TIME_DIGITS], 16) if _UUID7_HEX.fullmatch(value) else None


def with_time(uuid7_hex: str, unix_ms: int) -> str:
    """Return an id as of :meth:`Clock.new_id` with another time in it."""
    return f"{unix_ms:0{_TIME_DIGITS}x}{uuid7_hex[_TIME_DIGITS:]}"


def parse_uuid7_ms(batch_id: str) -> int:
    """Return the unix milliseconds inside a batch id.

    Args:
        batch_id: A UUIDv7 in its canonical form with dashes, lower-case.

    Raises:
        InvalidRequest: It is not a canonical UUIDv7.
    """
    if not _BATCH_ID.fullmatch(batch_id):
        raise InvalidRequest(
            f"batch id {batch_id[:80]!r} is not a UUIDv7 in canonical lower-case form; "
            "let the client choose it, or use icedb_log.clock.new_batch_id"
        )
    return int(batch_id[:8] + batch_id[9:13], 16)


def new_batch_id(clock: Clock) -> str:
    """Return a fresh batch id: a canonical UUIDv7 with dashes (rule I1)."""
    return str(uuid.UUID(hex=clock.new_id()))
