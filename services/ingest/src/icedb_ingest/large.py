"""Runs the worker of large batches: ``python -m icedb_ingest.large``. Wiring only."""

from functools import partial

from icedb_service.main import run_main

from icedb_ingest.__main__ import serve
from icedb_ingest.settings import IngestSettings

if __name__ == "__main__":
    run_main(IngestSettings, "ingest-large", partial(serve, queue="ingest-large"))
