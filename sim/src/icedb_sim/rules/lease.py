"""How the rules of taking and renewing leases are switched off. Their schedules have lessees."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, played_by

LEASE_RULES: Final = played_by(
    "lessees:2",
    breaks(
        "J4",
        "leases are ignored while they are taken",
        edit("clean.holds:read_holds", ("(leases or LeaseReader()).read(store, paths, latest_ms=now_ms).leases", "()")),
    ),
    breaks(
        "J4",
        "a lease is not proven",
        edit("clean.lease_holding:_require_certain", ("if found_ms is None:", "if True:")),
    ),
    breaks(
        "J4",
        "a lease is not proven, not even by the horizon",
        edit("clean.lease_holding:_require_certain", ("    oldest_ms = read", "    return\n    oldest_ms = read")),
    ),
    breaks(
        "J4",
        "a lease is proven by a log that was read before it was there",
        edit(
            "clean.lease_holding:acquire_lease",
            ("    lease_id = clock.new_id()\n", "    view = reader.read()\n    lease_id = clock.new_id()\n"),
            ("        view = reader.read()\n        require_same", "        require_same"),
        ),
    ),
    breaks(
        "J4",
        "a renewal that landed after the end counts",
        edit("clean.lease_holding:renew_lease", ("if info.modified_ms >= found.lease.expires_ms:", "if False:")),
    ),
    breaks(
        "J4",
        "a lease that was renewed after its end is alive again",
        edit("clean.lease_holding:_find", ("found.has_lapsed or ", "")),
        edit("clean.lease_holding:renew_lease", ("            _take_back(store, key)\n", "")),
    ),
    breaks(
        "J4",
        "a lease ends before its time",
        edit(
            "clean.leases:LeaseReader.read",
            ("lease.held_until_ms > now_ms", "lease.expires_ms - 20_000 > now_ms"),
        ),
    ),
    breaks(
        "J4",
        "a lease holds what died after it was written, not what died after its time",
        edit(
            "clean.guards:Holds._guards_of_times",
            ("if lease.held_from_ms < death.seen_dead_ms", "if lease.at_ms + 30_000 < death.seen_dead_ms"),
        ),
    ),
)
