"""How the rules of the rest of the janitor are switched off. Their schedules have sweepers."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, played_by

_BEGIN_DROP: Final = "ingest.quarantine_ops:begin_drop"

SWEEP_RULES: Final = played_by(
    "sweepers:2",
    breaks(
        "J10",
        "what could not be announced goes all the same",
        edit("clean.audit:RunAudit.announce", ("        raise\n", "        pass\n")),
    ),
    breaks(
        "J11",
        "entries of quarantine go whatever their age",
        edit("clean.leftovers:find_leftover_ages", ('ages["quarantine"] = ', 'ages["quarantine"] = 0 * ')),
    ),
    breaks(
        "J11",
        "an entry whose retry has begun goes",
        edit(_BEGIN_DROP, (" or found.entry.retry_id is not None:", ":")),
    ),
    breaks(
        "J11",
        "an entry goes that was written anew since it was listed",
        edit(_BEGIN_DROP, (" or found.etag != etag", "")),
    ),
    breaks(
        "J11",
        "an entry of a batch that is staged goes",
        edit(
            "clean.leftovers:drop_old_quarantine",
            ("if batch_id_of_object(name) not in staged}", "if name}"),
        ),
    ),
    breaks(
        "J11",
        "an entry is taken by looking alone",
        edit(
            _BEGIN_DROP,
            ("store.put_if_match(reason_key(paths, batch_id), mark_dropped(found), etag=", "("),
        ),
    ),
)
