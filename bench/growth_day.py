"""What a day costs: requests, bytes and dollars of a million events, from what was counted in a part of it. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.figures import Figure
from bench.growth_tables import GrowingTable, Usage

DAY_S: Final = 86_400
MILLION: Final = 1_000_000
GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Price:
    """What a store bills, dollars: S3 standard, its list price.

    Attributes:
        write: Of 1,000 requests that write or list.
        read: Of 1,000 requests that read.
        keep: Of 10^9 bytes for a month.
    """

    write: float = 0.005
    read: float = 0.0004
    keep: float = 0.023

    def of_requests(self, requests: Mapping[str, float]) -> float:
        """Return dollars; deletions are free."""
        writes = requests.get("put", 0) + requests.get("list", 0)
        return (writes * self.write + requests.get("get", 0) * self.read) / 1000


@dataclass(slots=True)
class Day:
    """What was used for some events.

    Attributes:
        events: How many.
        requests: By kind, of writers, mergers and the janitor.
        staging_requests: Those among them that make batches safe before they are committed, and read them again.
        log_written_bytes: Written of log, or of metadata.
        log_bytes: Of the log at the end; 0: not known.
        log_files: Objects of it.
        live_files: Data files at the end.
        write_amplification: Bytes of data written, by bytes that came.
        cpu_s: Processor time beside the path of the data; 0: not known.
    """

    events: float
    requests: Counter[str] = field(default_factory=Counter)
    staging_requests: Counter[str] = field(default_factory=Counter)
    log_written_bytes: float = 0.0
    log_bytes: float = 0.0
    log_files: float = 0.0
    live_files: float = 0.0
    write_amplification: float = 1.0
    cpu_s: float = 0.0

    @classmethod
    def of_table(cls, table: GrowingTable) -> "Day":
        """Return what a table of ours has used, and how large it is now."""
        requests: Counter[str] = Counter()
        for usage in table.used.values():
            requests += usage.requests
        sent_bytes = sum(usage.sent_bytes for who, usage in table.used.items() if who != "stage")
        return cls(
            events=table.event_count,
            requests=requests,
            staging_requests=table.staging_requests,
            log_written_bytes=sent_bytes - table.appended_bytes - table.rewritten_bytes,
            log_bytes=table.log_bytes(),
            log_files=table.log_file_count(),
            live_files=len(table.live_files()),
            write_amplification=1 + table.rewritten_bytes / max(table.appended_bytes, 1),
            cpu_s=sum(usage.cpu_s for usage in table.used.values()),
        )

    @classmethod
    def of_appends(cls, seen: Mapping[int, Usage], *, commit_count: int, rows: int, file_bytes: float) -> "Day":
        """Return what so many appends would use, of which some were counted.

        Args:
            seen: What some appends used, by the number of appends before them: costs are taken to lie on the straight
                line through the first and the last.
            commit_count: Appends of the day.
            rows: Of each.
            file_bytes: Of the data file of each.
        """
        first, last = min(seen), max(seen)
        begin, end = seen[first], seen[last]
        requests: Counter[str] = Counter()
        for kind in {*begin.requests, *end.requests}:
            line = _Line(first, begin.requests[kind] / begin.calls, last, end.requests[kind] / end.calls)
            requests[kind] = round(line.sum_to(commit_count))
        sent_line = _Line(first, begin.sent_bytes / begin.calls, last, end.sent_bytes / end.calls)
        return cls(
            events=commit_count * rows,
            requests=requests,
            log_written_bytes=max(0.0, sent_line.sum_to(commit_count) - file_bytes * commit_count),
            live_files=commit_count,
        )


@dataclass(frozen=True, slots=True)
class _Line:
    """A straight line through two points, level if they are one, never falling."""

    x0: float
    y0: float
    x1: float
    y1: float

    def sum_to(self, count: int) -> float:
        """Return the sum of its values at 0, 1, … below ``count``."""
        slope = max(0.0, (self.y1 - self.y0) / (self.x1 - self.x0)) if self.x1 > self.x0 else 0.0
        mean = (self.y0 + self.y1) / 2 if slope == 0 else self.y0 + slope * ((count - 1) / 2 - self.x0)
        return max(0.0, mean) * count


def day_figures(day: Day, price: Price) -> list[Figure]:
    """Return the figures of a day, of a million events where that makes sense; what it is about comes first."""
    scale = MILLION / day.events
    beside = day.requests - day.staging_requests
    log = [
        Figure("processor time of a million events, without the rows", "s", day.cpu_s * scale),
        Figure("log", "MB", day.log_bytes / 1e6),
        Figure("log files", "files", day.log_files),
        Figure("keeping the log for a month", "$", day.log_bytes / GB * price.keep),
    ]
    return [
        Figure("a million events", "$", price.of_requests(day.requests) * scale),
        Figure("a million events but for staging", "$", price.of_requests(beside) * scale),
        Figure("requests of a million events", "requests", sum(day.requests.values()) * scale),
        Figure("those that write or list", "requests", (day.requests["put"] + day.requests["list"]) * scale),
        Figure("write amplification", "x", day.write_amplification),
        Figure("log written for a million events", "MB", day.log_written_bytes * scale / 1e6),
        Figure("live data files", "files", day.live_files),
        *(log if day.log_bytes else ()),
    ]
