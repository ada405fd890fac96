"""How the rule is switched off that an id has one content, and that no other one vanishes (I8)."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, played_by

REUSE_RULES: Final = played_by(
    "reusers:2",
    breaks(
        "I8",
        "a copy of a committed id goes whatever its content is",
        edit("ingest.refusals:settle_copy", ("if is_same_content(known, sha256):", "if True:")),
    ),
    breaks(
        "I8",
        "a copy of a refused id goes whatever its content is",
        edit("ingest.refusals:_settle_refused", ("if _find_content(store, found) == sha256:", "if True:")),
    ),
    breaks(
        "I8",
        "the janitor deletes copies by their id alone",
        edit("clean.vacuum_run:VacuumRun._delete_copies", ("if self._settle(copy, batch_id)", "if batch_id")),
    ),
    breaks(
        "I8",
        "other content goes without a copy in quarantine",
        edit("ingest.refusals:_keep_conflict", ("            store.put(payload, body)\n", "")),
    ),
    breaks(
        "I8",
        "what a commit does not tell is taken for the same",
        edit("ingest.content:is_same_content", ("return bool(known) and known", "return not known or known")),
    ),
    breaks(
        "I8",
        "what is told of contents counts for any commit",
        edit(
            "log.codec:_decode_contents",
            ('if value.get("cid") is None or value["cid"] != metadata.get("cid"):', "if False:"),
        ),
    ),
    breaks(
        "I8",
        "an entry of other content is only looked at",
        edit(
            "ingest.refusals:_keep_conflict",
            (
                '            fields = {**found.fields, "quarantined_ms": clock.now_ms()}\n',
                '            return "conflict"\n',
            ),
        ),
    ),
    breaks(
        "I8",
        "a copy goes although the janitor drops its entry",
        edit("ingest.refusals:_keep_conflict", ('            return "left"\n', '            return "conflict"\n')),
    ),
)
