"""Runs the S3 gateway: ``python -m icedb_gateway``. Needs the store alone, and of that only to read."""

from functools import partial
from typing import Final

from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main

from icedb_gateway.server import Gateway
from icedb_gateway.settings import GatewaySettings

serve: Final = partial(run_endpoints, Gateway)

if __name__ == "__main__":
    run_main(GatewaySettings, "gateway", serve)
