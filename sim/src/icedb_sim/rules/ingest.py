"""How the rules of ingest are switched off: flushes, quarantine, ids that are used again, and appends."""

from typing import Any, Final

from icedb_log.errors import Unavailable
from icedb_log.ingest.content import DIGEST_CHARS
from icedb_log.ingest.quarantine import conflict_name, find_reason, is_being_dropped, reason_key
from icedb_log.ingest.quarantine_ops import _delete_entry, _payloads_of
from icedb_log.ingest.staging import stage_batch
from icedb_log.keys import parse_staged_key

from icedb_sim.rules.mutations import breaks, code, edit, played_by
from icedb_sim.rules.switches import Other, answers, around, careless, instead, with_store

_LIST: Final = "staged = list_staged(table.store, table.paths, limit=limits.listed_batches, skip=limits.skip)"


def _without_payloads(store: Any) -> object:
    """Return a store to which no payload is written; reasons are written under conditions."""
    return Other(store, put=lambda *_: "")


def _delete_then_stage(store: Any, paths: Any, found: Any, *, payload: Any, retry_id: str) -> None:
    _delete_entry(store, paths, found.entry)
    stage_batch(store, paths, body=payload.body, staging_format=payload.format, batch_id=retry_id)


def _delete_reason_first(store: Any, paths: Any, entry: Any) -> None:
    for keys in ([reason_key(paths, entry.batch_id)], _payloads_of(store, paths, entry)):
        report = store.delete(keys)
        if report.failed:
            raise Unavailable(f"{report.failed[0].key}: {report.failed[0].reason}; do it again")


INGEST_RULES: Final = (
    breaks(
        "I2",
        "staged batches are deleted before the commit",
        edit(
            "ingest.flush:_decide",
            (
                "committed_key = commit.land(",
                code(
                    "delete_or_raise(table.store, [batch.key for batch in output.accepted])",
                    "        committed_key = commit.land(",
                ),
            ),
        ),
    ),
    breaks(
        "I2",
        "staging is listed before the log is read",
        edit(
            "ingest.flush:flush_table",
            (
                "    with AppendCommit(table) as commit:\n",
                f"    {_LIST}\n    with AppendCommit(table) as commit:\n",
            ),
            (f"        {_LIST}\n        sorted", "        sorted"),
        ),
    ),
    breaks(
        "I3",
        "ids in the log are not looked at",
        edit("ingest.flush:_sort_out", ("if batch.batch_id in committed_ids:", "if False:")),
    ),
    breaks(
        "I3",
        "a batch may be staged again at any time",
        edit("ingest.flush:refuse_stale_id", ("if batch.staged_ms >= id_ms + config.retry_window_ms:", "if False:")),
    ),
    breaks(
        "I3",
        "an id may lie in the future",
        edit("ingest.flush:refuse_stale_id", ("if id_ms > batch.staged_ms + config.id_skew_ms:", "if False:")),
    ),
    breaks(
        "I5",
        "a batch is moved to quarantine before the commit that refuses it",
        edit(
            "ingest.flush:_decide",
            (
                "    committed_key: str | None = None\n",
                code(
                    "    committed_key: str | None = None",
                    "    for refusal in rejected:",
                    "        quarantine_batch(table.store, table.paths, rejected=refusal, clock=table.clock)",
                    "",
                ),
            ),
        ),
    ),
    breaks(
        "I5",
        "refused ids in the log are not looked at",
        edit("ingest.flush:_sort_out", ("if batch.batch_id in refused_ids:", "if False:")),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written without a look at the fence",
        edit("ingest.flush:_quarantine_bad_rows", ("    commit.fence.confirm()\n    for bad", "    for bad")),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written over whatever is there",
        with_store("ingest.quarantine:quarantine_rows", careless),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written after the commit",
        edit(
            "ingest.flush:_decide",
            ("        _quarantine_bad_rows(commit, output)\n", ""),
            (
                "        committed_key = commit.land(log).key\n",
                "        committed_key = commit.land(log).key\n        _quarantine_bad_rows(commit, output)\n",
            ),
        ),
    ),
    breaks(
        "I5",
        "what is refused leaves no copy in quarantine",
        with_store("ingest.refusals:quarantine_batch", _without_payloads),
    ),
    breaks(
        "I5",
        "a retry deletes the batch before it is staged again",
        instead("ingest.quarantine_ops:_stage_again", _delete_then_stage),
    ),
    breaks(
        "I5",
        "the reason of a batch goes before the batch",
        instead("ingest.quarantine_ops:_delete_entry", _delete_reason_first),
    ),
    breaks(
        "I6",
        "what a flush leaves out for its size is cleared from staging",
        edit(
            "ingest.flush:_decide",
            ("[batch.key for batch in output.accepted]", "[b.key for b in (*output.accepted, *output.left_out)]"),
        ),
    ),
)


# Ids that are used again for other content


def _only_look(original: Any, store: Any, paths: Any, key: str, **kwargs: Any) -> Any:
    name = conflict_name(parse_staged_key(key).batch_id, kwargs["sha256"])
    found = find_reason(store, paths, name)
    if found is not None and found.fields and not is_being_dropped(found):
        return "conflict"
    return original(store, paths, key, **kwargs)


def _take_left_for_kept(original: Any, *args: Any, **kwargs: Any) -> Any:
    settled = original(*args, **kwargs)
    return "conflict" if settled == "left" else settled


_KEEP: Final = "ingest.refusals:_keep_conflict"

REUSE_RULES: Final = played_by(
    "reusers:2",
    breaks(
        "I8", "a copy of a committed id goes whatever its content is", answers("ingest.refusals:is_same_content", True)
    ),
    breaks(
        "I8", "a copy of a refused id goes whatever its content is", answers("ingest.refusals:_is_content_of", True)
    ),
    breaks("I8", "the janitor deletes copies by their id alone", answers("clean.vacuum_run:VacuumRun._settle", True)),
    breaks("I8", "other content goes without a copy in quarantine", with_store(_KEEP, _without_payloads)),
    breaks(
        "I8",
        "what a commit does not tell is taken for the same",
        instead("ingest.content:is_same_content", lambda known, sha256: not known or known == sha256[:DIGEST_CHARS]),
    ),
    breaks("I8", "what is told of contents counts for any commit", answers("log.codec:_is_own_word", True)),
    breaks("I8", "an entry of other content is only looked at", around(_KEEP, _only_look)),
    breaks("I8", "a copy goes although the janitor drops its entry", around(_KEEP, _take_left_for_kept)),
)


# Appends of jobs that write files themselves

OUTSIDER_RULES: Final = played_by(
    "outsiders:2",
    breaks(
        "A1",
        "the log is read before the fence is taken",
        edit(
            "table.commit:Commit.__enter__",
            (
                "    self.fence = acquire_fence(",
                "    self._role == 'ingest' and self._read_log()\n    self.fence = acquire_fence(",
            ),
            ("        self._read_log()  # F2", "        self._role == 'ingest' or self._read_log()  # F2"),
        ),
    ),
    breaks(
        "A2",
        "a commit under the same id is not looked for",
        edit(
            "ingest.append:_commit_once",
            ("if any(job.batch_id in file.log.batch_ids for file in commit.log.files):", "if False:"),
        ),
    ),
    breaks(
        "A2",
        "an id may be of any age",
        edit("ingest.append:_require_young_id", ("if now_ms >= id_ms + table.config.retry_window_ms:", "if False:")),
    ),
    breaks(
        "A3",
        "files may be of any age",
        edit("ingest.append:_require_young_files", ("if age_ms > limit_ms:", "if False:")),
    ),
)
