"""The input of the ingest benchmark: flat product events as NDJSON, of 6 or 30 columns, over any number of days.

The times of each batch are spread over all days, so that every batch has rows for every partition: the hard case for
whoever writes one file for each partition. Deterministic by seed. No column is nested and strings are short, so that
all systems read the same types; ``campaign`` and ``revenue`` are missing in most events, as optional fields are.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.ingest_work import IngestInput

DAY_MS: Final = 86_400_000
FIRST_DAY_MS: Final = 1_748_736_000_000  # 2025-06-01T00:00:00Z
FEW: Final = 6
MANY: Final = 30

_EVENTS: Final = ("page_view", "click", "scroll", "search", "add_to_cart", "purchase", "sign_up", "error")
_PATHS: Final = ("/", "/pricing", "/docs", "/docs/start", "/blog", "/login", "/cart", "/checkout", "/about")
_COUNTRIES: Final = ("US", "DE", "IN", "BR", "GB", "FR", "JP", "NL", "SE", "ZA", "MX", "VN")
_CITIES: Final = ("Berlin", "London", "Lagos", "Tokyo", "Lima", "Oslo", "Delhi", "Paris", "Rome", "Cairo")
_BROWSERS: Final = ("chrome", "safari", "firefox", "edge")
_SYSTEMS: Final = ("windows", "macos", "linux", "ios", "android")
_REFERRERS: Final = ("https://search.example/?q=shoes", "https://news.example/a/17", "direct", "https://mail.example")
_CAMPAIGNS: Final = ("spring_sale", "newsletter_23", "podcast")
_PLANS: Final = ("free", "team", "business")
_LANGUAGES: Final = ("en", "de", "fr", "pt-BR", "ja")


def write_input(
    folder: Path, *, column_count: int, day_count: int, event_count: int, batch_count: int, seed: int = 1
) -> IngestInput:
    """Write the batches of one case below ``folder``."""
    folder.mkdir(parents=True)
    files: list[Path] = []
    duration_sum = 0
    for number in range(batch_count):
        first = number * event_count // batch_count
        row_count = (number + 1) * event_count // batch_count - first
        rng = np.random.default_rng((seed, number))
        durations = rng.integers(0, 60_000, row_count)
        duration_sum += int(durations.sum())
        parts = _few_columns(rng, durations, day_count)
        if column_count == MANY:
            parts += _more_columns(rng, row_count)
        path = folder / f"batch-{number:05}.ndjson"
        path.write_bytes(b"".join(line.as_buffer() for line in pc.binary_join_element_wise(*parts, "}\n", "")))
        files.append(path)
    size_bytes = sum(path.stat().st_size for path in files)
    return IngestInput(tuple(files), event_count, duration_sum, day_count, size_bytes)


def _few_columns(rng: np.random.Generator, durations: np.ndarray, day_count: int) -> list[Any]:
    count = len(durations)
    ts_ms = FIRST_DAY_MS + rng.integers(0, day_count * DAY_MS, count)
    times = pc.replace_substring(pa.array(ts_ms, pa.timestamp("ms")).cast(pa.string()), pattern=" ", replacement="T")
    return [
        '{"ts":"', times, 'Z","event":"', _pick(rng, _EVENTS, count),
        '","user_id":"u', _text(rng.zipf(1.3, count) % 50_000), '","path":"', _pick(rng, _PATHS, count),
        '","duration_ms":', _text(durations), ',"price":', _decimals(rng, count),
    ]  # fmt: skip


def _more_columns(rng: np.random.Generator, count: int) -> list[Any]:
    return [
        ',"session_id":"s', _text(rng.integers(10**11, 10**12, count)), '","country":"', _pick(rng, _COUNTRIES, count),
        '","city":"', _pick(rng, _CITIES, count), '","browser":"', _pick(rng, _BROWSERS, count),
        '","os":"', _pick(rng, _SYSTEMS, count), '","referrer":"', _pick(rng, _REFERRERS, count),
        '","language":"', _pick(rng, _LANGUAGES, count), '","plan":"', _pick(rng, _PLANS, count),
        '","screen_width":', _text(rng.integers(320, 3840, count)),
        ',"screen_height":', _text(rng.integers(480, 2160, count)),
        ',"scroll_depth":', _decimals(rng, count), ',"load_ms":', _text(rng.integers(20, 9000, count)),
        ',"is_new":', _flags(rng, count), ',"is_logged_in":', _flags(rng, count),
        ',"app_version":"4.', _text(rng.integers(0, 30, count)), '"',
        ',"region":"', _pick(rng, _COUNTRIES, count), '","device":"', _pick(rng, _BROWSERS, count),
        '","items":', _text(rng.integers(0, 40, count)), ',"score":', _decimals(rng, count),
        ',"is_mobile":', _flags(rng, count), ',"request_id":"r', _text(rng.integers(10**15, 10**16, count)),
        '","variant":"', _pick(rng, _PLANS, count), '"',
        _sometimes(rng, count, 0.3, ',"campaign":"', _pick(rng, _CAMPAIGNS, count), '"'),
        _sometimes(rng, count, 0.1, ',"revenue":', _decimals(rng, count), ""),
    ]  # fmt: skip


def _pick(rng: np.random.Generator, words: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(words).take(pa.array(rng.integers(0, len(words), count)))


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _flags(rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(rng.random(count) < 0.5).cast(pa.string())


def _decimals(rng: np.random.Generator, count: int) -> pa.Array:
    """Numbers with a fraction that is exact in binary and never 0: a double for every reader."""
    return pa.array(rng.integers(1, 500, count) + rng.integers(1, 4, count) / 4).cast(pa.string())


def _sometimes(
    rng: np.random.Generator, count: int, share: float, before: str, values: pa.Array, after: str
) -> pa.Array:
    return pc.if_else(pa.array(rng.random(count) < share), pc.binary_join_element_wise(before, values, after, ""), "")
