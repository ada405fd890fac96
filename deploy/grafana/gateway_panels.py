"""What the dashboard shows of the S3 gateway: requests, how long they take, what is sent, who is refused."""

from graphs import Graph, Query, quantiles, rate

FAILING = 'outcome=~"slow_down|unavailable|failed"'

GATEWAY: tuple[Graph, ...] = (
    Graph(
        "S3 requests",
        "reqps",
        (Query(rate("icedb_gateway_requests_total", by="operation, outcome"), "{{operation}} {{outcome}}"),),
        "Requests per second, by what they asked for and what became of them.",
        ("IceDBGatewayDown",),
    ),
    Graph(
        "S3 requests that fail",
        "percentunit",
        (
            Query(
                f"{rate('icedb_gateway_requests_total', by='outcome', select=FAILING)} / on () group_left () "
                f"{rate('icedb_gateway_requests_total')}",
                "{{outcome}}",
            ),
        ),
        "Share of requests with which nothing was wrong: too many at once (slow_down), the store (unavailable), a "
        "halted table or a bug (failed).",
        ("IceDBGatewayFailing", "IceDBGatewayFileMissing"),
    ),
    Graph(
        "S3 time to the first byte",
        "s",
        quantiles("icedb_gateway_request_seconds", select='operation=~"list|get"'),
        "Of listings and of files.",
    ),
    Graph(
        "S3 bytes sent",
        "Bps",
        (Query(rate("icedb_gateway_sent_bytes_total"), "sent"),),
        "Bytes of data files per second.",
    ),
    Graph(
        "Files being sent",
        "short",
        (Query("sum(icedb_gateway_open_bodies)", "open"),),
        "Bounded by a setting of the gateway; more wait, then are told to come back.",
    ),
    Graph(
        "Refused signatures",
        "reqps",
        (Query(rate("icedb_gateway_refused_signatures_total", by="code"), "{{code}}"),),
        "Requests per second whose sender was not recognised, by S3's code.",
    ),
)
