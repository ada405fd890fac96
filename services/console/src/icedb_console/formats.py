"""Numbers, sizes and times as people read them, each with its exact value in a title. Everything is escaped."""

from datetime import UTC, datetime
from typing import Final

from icedb_log.clock import format_ms
from markupsafe import Markup

_THOUSAND: Final = 1000
_KIB: Final = 1024
_EXACT_BELOW: Final = 10_000
_COUNT_UNITS: Final = ("", "k", "M", "G", "T")
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_MAX_TIME_MS: Final = 253_402_300_799_000
_SECOND_MS: Final = 1000


def short_count(count: int) -> str:
    """Return a number in three digits or so, ``1.2 M``; up to 9,999 all of them."""
    return f"{count:,}" if abs(count) < _EXACT_BELOW else _shorten(float(count), _COUNT_UNITS, _THOUSAND)


def short_bytes(size_bytes: int) -> str:
    """Return a size: ``1.5 MiB``."""
    return _shorten(float(size_bytes), _SIZE_UNITS, _KIB)


def short_span(duration_ms: int) -> str:
    """Return a duration in its largest unit, and the next one where that is one digit: ``1 h 5 min``."""
    if duration_ms < _SECOND_MS:
        return f"{max(duration_ms, 0)} ms"
    parts: list[str] = []
    rest = duration_ms
    for unit, size_ms in _SPANS:
        found, rest = divmod(rest, size_ms)
        if found or parts:
            parts.append(f"{found} {unit}")
        if len(parts) == 2 or (parts and found > 9):  # noqa: PLR2004 - two units; one that has two digits is enough
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def show_count(count: int | None) -> Markup:
    """Return a number for a page; ``unknown`` where nobody knows it."""
    if count is None:
        return Markup('<span class="quiet">unknown</span>')
    return Markup('<span class="n" title="{:,}">{}</span>').format(count, short_count(count))


def show_bytes(size_bytes: int | None) -> Markup:
    """Return a size for a page."""
    if size_bytes is None:
        return Markup('<span class="quiet">unknown</span>')
    return Markup('<span class="n" title="{:,} bytes">{}</span>').format(size_bytes, short_bytes(size_bytes))


def show_span(duration_ms: int | None) -> Markup:
    """Return a duration for a page; a dash for none."""
    if not duration_ms:
        return Markup('<span class="quiet">–</span>')  # noqa: RUF001 - a dash for people
    return Markup('<span class="n" title="{:,} ms">{}</span>').format(duration_ms, short_span(duration_ms))


def show_ago(time_ms: int | None, now_ms: int) -> Markup:
    """Return how long ago, or in how long, a time is, with the time itself; a dash for none."""
    if not time_ms or not 0 < time_ms <= _MAX_TIME_MS:
        return Markup('<span class="quiet">–</span>')  # noqa: RUF001 - a dash for people
    gone_ms = now_ms - time_ms
    if abs(gone_ms) < _SECOND_MS:
        words = "now"
    else:
        words = f"{short_span(gone_ms)} ago" if gone_ms > 0 else f"in {short_span(-gone_ms)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(format_ms(time_ms), show_exactly(time_ms), words)


def show_exactly(time_ms: int) -> str:
    """Return a time to the second, UTC."""
    if not 0 <= time_ms <= _MAX_TIME_MS:
        return str(time_ms)
    return f"{datetime.fromtimestamp(time_ms / _SECOND_MS, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _shorten(value: float, units: tuple[str, ...], base: int) -> str:
    for unit in units:
        # 999.7 would round to four digits
        if value < base - 0.5 or unit == units[-1]:
            digits = 1 if unit != units[0] and value < 100 else 0  # noqa: PLR2004 - two digits before the point are enough
            return f"{value:.{digits}f} {unit}".strip()
        value /= base
    raise AssertionError("unreachable")
