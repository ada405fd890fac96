"""What the console counts."""

from typing import Final, Literal, get_args

from icedb_log.units import SECOND_MS
from icedb_service.metrics import EndpointMetrics, outcome_of

Page = Literal["overview", "table", "columns", "quarantine", "workers", "query", "action", "live", "sign_in", "other"]
PAGES: Final[tuple[Page, ...]] = get_args(Page)
OUTCOMES: Final = ("ok", "not_modified", "denied", "not_found", "bad_request", "slow_down", "unavailable", "failed")
QUERY_OUTCOMES: Final = ("ok", "refused", "failed", "too_slow", "too_large", "cancelled", "busy", "denied")
ACTIONS: Final = ("flush", "merge", "vacuum", "retry", "drop", "delete_tag", "release")
ACTION_OUTCOMES: Final = ("done", "failed")
TIME_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BY_STATUS: Final = {
    304: "not_modified",
    401: "denied",
    403: "denied",
    404: "not_found",
    429: "slow_down",
    503: "unavailable",
}


class ConsoleMetrics(EndpointMetrics):
    """Counters of pages, queries and actions."""

    def __init__(self) -> None:
        super().__init__("console", package="icedb-console")
        make = self.make
        self._requests = make.counter(
            "icedb_console_requests_total", "Requests by page and outcome", page=PAGES, outcome=OUTCOMES
        )
        self._request_time = make.histogram(
            "icedb_console_request_seconds",
            "Time from a request to the first byte of its answer",
            buckets=TIME_BUCKETS_S,
            page=PAGES,
        )
        self._queries = make.counter(
            "icedb_console_queries_total",
            "Queries by outcome; refused: not a single reading statement; busy: too many at once; "
            "cancelled: its page was closed",
            outcome=QUERY_OUTCOMES,
        )
        self._actions = make.counter(
            "icedb_console_actions_total",
            "Actions taken in the console, by outcome",
            action=ACTIONS,
            outcome=ACTION_OUTCOMES,
        )
        self.streams = make.gauge("icedb_console_open_streams", "Pages that are kept up to date now")

    def count_request(self, page: Page, status: int, *, duration_ms: int) -> None:
        """Count an answered request."""
        self._requests.labels(page, outcome_of(status, _BY_STATUS)).inc()
        self._request_time.labels(page).observe(duration_ms / SECOND_MS)

    def count_query(self, outcome: str) -> None:
        """Count a query."""
        self._queries.labels(outcome).inc()

    def count_action(self, action: str, *, is_done: bool) -> None:
        """Count what somebody had done."""
        self._actions.labels(action, "done" if is_done else "failed").inc()
