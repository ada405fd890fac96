"""What the services counted in each hour of the day: requests to the store, dollars, and what tables looked like."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from icedb_snapshot.settings import S3_STANDARD

from icedb_local.background import BackgroundThread
from icedb_local.chaos.metric_history import read_metrics

INTERVAL_S: Final = 2.0
REQUESTS: Final = "icedb_store_requests_total"
GAUGES: Final = ("icedb_table_data_files", "icedb_table_log_files", "icedb_table_merge_lag_seconds")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class HourlyMeter(BackgroundThread):
    """A thread that scrapes every service; use as a context manager.

    Args:
        ports: Of each service's metrics.
        hour: Returns the hour of the day.
    """

    def __init__(self, ports: Mapping[str, int], *, hour: Callable[[], float]) -> None:
        super().__init__("meter")
        self._ports = ports
        self._hour = hour
        self._last: dict[str, dict[str, float]] = {}
        self.requests: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
        """By hour: requests by cause and class of price."""
        self.tables: dict[int, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        """By hour, figure and table: the highest value."""

    def scrape(self) -> None:
        """Ask each service once; of one that is to stop, before it does."""
        hour = int(self._hour())
        for service, port in self._ports.items():
            values = read_metrics(port, kept=(REQUESTS, *GAUGES))
            if values is not None:
                self._note(hour, service, values)

    def _note(self, hour: int, service: str, values: Mapping[str, float]) -> None:
        last = self._last.setdefault(service, {})
        for series, value in values.items():
            name, labels = series.partition("{")[0], dict(_LABEL.findall(series))
            if name == REQUESTS:
                before = last.get(series, 0.0)
                # A process that is another one began at 0.
                self.requests[hour][labels["cause"], labels["price"]] += int(
                    value - before if value >= before else value
                )
                last[series] = value
            else:
                known = self.tables[hour][name.removeprefix("icedb_table_")]
                known[labels["table"]] = max(known.get(labels["table"], 0.0), value)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.scrape()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the hours; 24: after midnight."""
        return [
            {
                "hour": hour,
                "requests": sum(counts.values()),
                "requests_by_cause": dict(sorted(_sum_causes(counts).items())),
                "dollars": round(sum(count * _price(price) for (_, price), count in counts.items()), 6),
                "tables": {name: dict(values) for name, values in self.tables[hour].items()},
            }
            for hour, counts in sorted(self.requests.items())
        ]


def _sum_causes(counts: Counter[tuple[str, str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (cause, _), count in counts.items():
        found[cause] += count
    return found


def _price(price: str) -> float:
    return S3_STANDARD.get(f"{price}_1000", 0.0) / 1000  # deletes are free
