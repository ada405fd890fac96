"""What the console counts."""

from typing import Final, Literal, get_args

from icedb_service.metrics import ProcessMetrics, outcome_of

Page = Literal["overview", "table", "columns", "quarantine", "workers", "query", "action", "live", "sign_in", "other"]
PAGES: Final[tuple[Page, ...]] = get_args(Page)
OUTCOMES: Final = ("ok", "not_modified", "denied", "not_found", "bad_request", "slow_down", "unavailable", "failed")
QUERY_OUTCOMES: Final = ("ok", "refused", "failed", "too_slow", "too_large", "cancelled", "busy", "denied")
_BY_STATUS: Final = {
    304: "not_modified",
    401: "denied",
    403: "denied",
    404: "not_found",
    429: "slow_down",
    503: "unavailable",
}


class ConsoleMetrics(ProcessMetrics):
    """Counters of pages and queries."""

    def __init__(self) -> None:
        super().__init__("console", package="icedb-console")
        make = self.make
        self._requests = make.counter(
            "icedb_console_requests_total", "Requests by page and outcome", page=PAGES, outcome=OUTCOMES
        )
        self._queries = make.counter(
            "icedb_console_queries_total",
            "Queries by outcome; refused: not a single reading statement; busy: too many at once; "
            "cancelled: its page was closed",
            outcome=QUERY_OUTCOMES,
        )

    def count_request(self, page: Page, status: int) -> None:
        """Count an answered request."""
        self._requests.labels(page, outcome_of(status, _BY_STATUS)).inc()

    def count_query(self, outcome: str) -> None:
        """Count a query."""
        self._queries.labels(outcome).inc()
