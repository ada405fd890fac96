"""What a table costs a day: Prometheus says it, which has the counters of all services. Nothing is counted here."""

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode
from urllib.request import urlopen

from icedb_log.errors import InvalidRequest, Unavailable

SERIES: Final = "icedb:table_cost_dollars:per_day"
TIMEOUT_S: Final = 5


def read_cost(prometheus_url: str, table: str) -> Mapping[str, float]:
    """Return what a table costs a day, dollars, by what it is for, dearest first; empty: nothing is known of it.

    Raises:
        InvalidRequest: No such address.
        Unavailable: Prometheus did not answer, or did not say.
    """
    if not prometheus_url.startswith(("http://", "https://")):
        raise InvalidRequest(f"ICEDB_PROMETHEUS_URL {prometheus_url[:80]!r}: write it as http://host:port")
    query = urlencode({"query": f'{SERIES}{{table="{table}"}}'})
    try:
        url = f"{prometheus_url.rstrip('/')}/api/v1/query?{query}"
        with urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 # nosec B310 - http and https only, see above
            found = json.load(answer)["data"]["result"]
            costs = {str(each["metric"]["cause"]): float(each["value"][1]) for each in found}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Unavailable(
            f"Prometheus at {prometheus_url} does not say ({error}): check ICEDB_PROMETHEUS_URL"
        ) from error
    return dict(sorted(costs.items(), key=lambda item: -item[1]))


def describe_cost(costs: Mapping[str, float]) -> str:
    """Return costs in words."""
    if not costs:
        return "not known: Prometheus has no figures of it for the last hour"
    parts = ", ".join(f"{cause} {_format(dollars)}" for cause, dollars in costs.items())
    return f"{_format(sum(costs.values()))} $: {parts}"


def _format(dollars: float) -> str:
    return f"{dollars:.2f}" if dollars >= 1 else f"{dollars:.2g}"
