"""Events that look like web analytics, as NDJSON batches: deterministic by seed, and fast.

Owns the shape of the demo's data: few users make most of the events, most events are of today and some
come hours late, ``properties`` holds an object and an array, ``campaign`` and ``ab_test`` appear later than
the other columns. Rows are made column by column with NumPy and joined to JSON by Arrow: about 300,000 a
second and core.

Every event carries ``upload``, the number of the batch that it came with: a reader can then tell whether a
batch is visible whole, in part, or twice.
"""

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log.errors import InvalidRequest

DAY_MS: Final = 86_400_000
FIRST_DAY_MS: Final = 1_748_736_000_000  # 2025-06-01T00:00:00Z
MAX_EVENTS_PER_BATCH: Final = 1_000_000

KINDS: Final = ("page_view", "click", "scroll", "search", "add_to_cart", "purchase", "sign_up", "error")
_KIND_SHARES: Final = (0.52, 0.19, 0.12, 0.07, 0.05, 0.02, 0.02, 0.01)
_PURCHASE: Final = KINDS.index("purchase")
_COUNTRIES: Final = ("US", "DE", "IN", "BR", "GB", "FR", "JP", "NL", "SE", "ZA", "MX", "VN")
_PATHS: Final = ("/", "/pricing", "/docs", "/docs/start", "/blog", "/login", "/cart", "/checkout", "/about")
_BROWSERS: Final = ("chrome", "safari", "firefox", "edge")
_SCREENS: Final = ("[1920,1080]", "[1440,900]", "[390,844]", "[412,915]", "[2560,1440]")
_CAMPAIGNS: Final = ("spring_sale", "newsletter_23", "podcast")
_CAMPAIGN_SHARE: Final = 0.3
_TESTS: Final = ("checkout:a", "checkout:b")
_PRICE_ENDS: Final = np.array([0.25, 0.5, 0.75])  # exact in binary, and never a whole number: always a DOUBLE


@dataclass(frozen=True, slots=True)
class EventBatch:
    """One batch as a producer sends it.

    Attributes:
        number: Position in the stream, from 0; for generated events also their ``upload`` column.
        body: NDJSON, UTF-8, a newline after each event.
        row_count: Number of events.
        rows_per_day: ISO day of ``ts`` to number of events.
    """

    number: int
    body: bytes
    row_count: int
    rows_per_day: Mapping[str, int]


DAY_COUNT: Final = 3
"""Days over which a stream runs; late events may fall up to two days earlier."""
USER_COUNT: Final = 50_000
"""Distinct users at most; the share of the k-th most active one falls like ``k**-1.1``."""
LATE_SHARE: Final = 0.06
"""Share of events that arrive hours after they happened."""


@dataclass(frozen=True, slots=True)
class EventGenerator:
    """A stream of batches; the same arguments give the same bytes.

    Attributes:
        event_count: Events in all batches.
        batch_count: Number of batches, nearly equal in size.
        seed: Any non-negative integer.
    """

    event_count: int
    batch_count: int
    seed: int = 1
    _user_cdf: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.batch_count <= self.event_count:
            raise InvalidRequest(
                f"{self.event_count} events in {self.batch_count} batches: ask for at least one batch, "
                "and for at least one event in each"
            )
        if self.event_count > self.batch_count * MAX_EVENTS_PER_BATCH:
            raise InvalidRequest(
                f"{self.event_count} events in {self.batch_count} batches are more than "
                f"{MAX_EVENTS_PER_BATCH} in one batch: ask for more batches"
            )
        weights = np.arange(1, USER_COUNT + 1, dtype=np.float64) ** -1.1
        object.__setattr__(self, "_user_cdf", np.cumsum(weights) / weights.sum())

    def batches(self) -> Iterator[EventBatch]:
        """Yield every batch, in order of number."""
        return (self.make_batch(number) for number in range(self.batch_count))

    def make_batch(self, number: int) -> EventBatch:
        """Make one batch; independent of the others, so that several threads may make batches at once.

        Args:
            number: 0 to ``batch_count`` - 1.
        """
        first = number * self.event_count // self.batch_count
        row_count = (number + 1) * self.event_count // self.batch_count - first
        rng = np.random.default_rng((self.seed, number))
        ts_ms = self._make_times(rng, first, row_count)
        lines = self._make_lines(rng, number, ts_ms)
        days, counts = np.unique(ts_ms // DAY_MS, return_counts=True)
        return EventBatch(
            number=number,
            body=_concatenate(lines),
            row_count=row_count,
            rows_per_day={day_name(int(day)): int(count) for day, count in zip(days, counts, strict=True)},
        )

    def _make_times(self, rng: np.random.Generator, first: int, row_count: int) -> np.ndarray:
        span_ms = DAY_COUNT * DAY_MS
        ts_ms = FIRST_DAY_MS + (np.arange(first, first + row_count) * span_ms) // self.event_count
        ts_ms += rng.integers(0, 1 + span_ms // self.event_count, row_count)
        late = rng.random(row_count) < LATE_SHARE
        delay_ms = np.minimum(rng.exponential(8 * 3_600_000, row_count), 2 * DAY_MS).astype(np.int64)
        return np.where(late, ts_ms - delay_ms, ts_ms)

    def _make_lines(self, rng: np.random.Generator, number: int, ts_ms: np.ndarray) -> pa.Array:
        count = len(ts_ms)
        progress = number / self.batch_count
        kind = rng.choice(len(KINDS), count, p=_KIND_SHARES)
        user = np.searchsorted(self._user_cdf, rng.random(count))
        times = pc.replace_substring(
            pa.array(ts_ms, pa.timestamp("ms")).cast(pa.string()), pattern=" ", replacement="T"
        )
        prices = pa.array(rng.integers(1, 500, count) + _PRICE_ENDS[rng.integers(0, len(_PRICE_ENDS), count)])
        purchases = pa.array(kind == _PURCHASE)
        parts: list[Any] = [
            '{"ts":"', times, 'Z","event":"', _pick(KINDS, kind),
            '","user_id":"u', _text(user), '","session_id":"s', _text(user * 7919 + ts_ms // 1_800_000),
            '","url":"https://shop.example', _pick(_PATHS, rng.integers(0, len(_PATHS), count)),
            '","country":"', _pick(_COUNTRIES, (user + rng.integers(0, 2, count)) % len(_COUNTRIES)),
            f'","upload":{number},"duration_ms":', _text(rng.integers(0, 60_000, count)),
            _optional(purchases, ',"revenue":', prices.cast(pa.string()), ""),
            ',"properties":{"browser":"', _pick(_BROWSERS, user % len(_BROWSERS)),
            '","screen":', _pick(_SCREENS, user % len(_SCREENS)),
            ',"depth":', _text(rng.integers(1, 30, count)), "}",
        ]  # fmt: skip
        if progress >= 1 / 3:
            has_campaign = pa.array(rng.random(count) < _CAMPAIGN_SHARE)
            campaigns = _pick(_CAMPAIGNS, rng.integers(0, len(_CAMPAIGNS), count))
            parts.append(_optional(has_campaign, ',"campaign":"', campaigns, '"'))
        if progress >= 2 / 3:
            parts += [',"ab_test":"', _pick(_TESTS, user % len(_TESTS)), '"']
        return pc.binary_join_element_wise(*parts, "}\n", "")


def day_name(days_since_epoch: int) -> str:
    """Return the ISO form of a day, e.g. ``2025-06-01``."""
    return (dt.date(1970, 1, 1) + dt.timedelta(days=days_since_epoch)).isoformat()


def add_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """Add row counts by key."""
    total: dict[str, int] = {}
    for key, count in itertools.chain.from_iterable(mapping.items() for mapping in counts):
        total[key] = total.get(key, 0) + count
    return total


def _pick(words: tuple[str, ...], index: np.ndarray) -> pa.Array:
    return pa.array(words).take(pa.array(index))


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _optional(mask: pa.Array, before: str, values: pa.Array, after: str) -> pa.Array:
    return pc.if_else(mask, pc.binary_join_element_wise(before, values, after, ""), "")


def _concatenate(lines: pa.Array) -> bytes:
    """Return all lines as one string: they already lie one after the other in Arrow's buffer."""
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return bytes(lines.buffers()[2][int(offsets[0]) : int(offsets[-1])])
