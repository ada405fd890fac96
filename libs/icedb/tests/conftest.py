"""What tests of the client and of the command share stands in the rig."""

from client_rig import (  # noqa: F401 - fixtures
    cli_env,
    client,
    clock,
    create,
    flush_rows,
    folder,
    lend,
    run_icedb,
    said_by_icedb,
    warehouse,
    workers,
)
