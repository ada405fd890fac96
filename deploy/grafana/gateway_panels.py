"""What dashboards show of the S3 gateway: requests, how long they take, what is sent, who is refused."""

from graphs import Graph, Query, by_table, quantiles, rate

GATEWAY: tuple[Graph, ...] = (
    Graph(
        "S3 requests",
        "reqps",
        (Query(rate("icedb_gateway_requests_total", by="operation, outcome"), "{{operation}} {{outcome}}"),),
        "Requests per second, by what they asked for and what became of them.",
        runbook=("IceDBGatewayDown",),
    ),
    Graph(
        "S3 requests that fail",
        "percentunit",
        (Query("max by (outcome) (icedb:gateway_failing:ratio_rate5m)", "{{outcome}}"),),
        "Share of requests with which nothing was wrong: too many at once (slow_down), the store (unavailable), a "
        "halted table or a bug (failed).",
        ("IceDBGatewayFailing",),
        ("IceDBGatewayFileMissing",),
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

HELD_BACK = Graph(
    "Held back from Iceberg",
    "short",
    (Query(by_table("max", "icedb_table_iceberg_held_back")),),
    "1: engines that speak Iceberg are shown an older state than the newest, or none. `icedb status` says why.",
)

ICEBERG: tuple[Graph, ...] = (
    HELD_BACK,
    Graph(
        "Publications for Iceberg",
        "ops",
        (Query(rate("icedb_gateway_publications_total", by="outcome"), "{{outcome}}"),),
        "Looks per second whether a table has a newer state to publish, by what came of them. held_back: an older "
        "state is shown; refused: the table cannot be shown as it is.",
    ),
    Graph(
        "Time of a publication",
        "s",
        quantiles("icedb_gateway_publication_seconds"),
        "Of one such look.",
    ),
    Graph(
        "Log reads of the gateway",
        "s",
        quantiles("icedb_gateway_refresh_seconds"),
        "Time to read a table's log, when what is kept in memory is too old.",
    ),
)
