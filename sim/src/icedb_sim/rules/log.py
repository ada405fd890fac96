"""How the rules of the log are switched off: writing, merging, reading."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, keeps

_DELETE_OUTPUTS: Final = (
    "    committed = self._fence.commit(log, last_check=within)",
    code(
        "    try:",
        "        committed = self._fence.commit(log, last_check=within)",
        "    except Exception as error:",
        "        if type(error).__name__ in ('CommitConflict', 'Fenced'):",
        "            self._fence._store.delete([marker.path for group in merged for marker in group.outputs])",
        "        raise",
    ),
)
_REFUSED_IS_LOST: Final = edit(
    "log.fence:HeldFence.commit",
    ("self._require_landed(key, log, is_key_taken=True)", 'raise Fenced("refused, hence lost") from None'),
)
_UNKNOWN: Final = "    except CommitOutcomeUnknown:\n        self._require_landed(key, log, is_key_taken=False)"

WRITE_RULES: Final = (
    breaks(
        "S1",
        "a merge is named by its own clock alone",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "max([now_ms, *(max(file.log.time_ms, parse_log_key(file.key).time_ms) + 1 for file in involved)])",
                "now_ms",
            ),
        ),
    ),
    breaks(
        "W2",
        "a lost answer is taken for a landed commit",
        edit("log.fence:HeldFence.commit", (_UNKNOWN, "    except CommitOutcomeUnknown:\n        pass")),
    ),
    breaks(
        "W2",
        "a refusal is taken for a landed commit",
        edit("log.fence:HeldFence.commit", ("self._require_landed(key, log, is_key_taken=True)", "pass")),
    ),
    breaks(
        "W2",
        "a lost answer is answered by a second PUT under another name",
        edit(
            "log.fence:HeldFence.commit",
            (
                _UNKNOWN,
                code(
                    "    except CommitOutcomeUnknown:",
                    "        key = self._paths.log_key(",
                    "            time_ms=log.time_ms, commit_id=self._clock.new_id(), is_merged=self._role == 'merge')",
                    "        self._store.put_if_absent(key, encode_log_file(log))",
                ),
            ),
        ),
    ),
    breaks(
        "W2",
        "a refusal is taken for a lost commit, whose outputs are deleted",
        _REFUSED_IS_LOST,
        edit("merge.merge_session:MergeSession.commit", _DELETE_OUTPUTS),
    ),
    keeps(
        "W2",
        "outputs are deleted when a commit was certainly refused",
        edit("merge.merge_session:MergeSession.commit", _DELETE_OUTPUTS),
    ),
    keeps("W2", "a refusal is taken for a lost commit, whose outputs stay", _REFUSED_IS_LOST),
    breaks(
        "W3",
        "old work is committed all the same",
        edit("stopwatch:Stopwatch.require_within", ("if elapsed_ms > limit_ms:", "if False:")),
    ),
    breaks(
        "W3",
        "the time is looked at before the intent",
        edit(
            "log.fence:HeldFence.commit",
            (
                "    self._advance(commit=key)\n",
                "    last_check and last_check()\n    last_check = None\n    self._advance(commit=key)\n",
            ),
        ),
    ),
    breaks(
        "F1",
        "the old commit is not sealed",
        edit("log.fence:acquire_fence", ("_settle(store, paths, current.commit)", "False")),
    ),
    breaks(
        "F2",
        "a merge is planned from a log read before the fence",
        edit(
            "merge.merge_session:MergeSession.__init__",
            (
                "    self._fence: Final[HeldFence] =",
                "    self.view: Final[LogView] = reader.read()\n    self._fence: Final[HeldFence] =",
            ),
            ("    self.view: Final[LogView] = reader.read()  # F2", "    # F2"),
        ),
    ),
    breaks(
        "F2",
        "a flush reads the log before the fence",
        edit(
            "ingest.flush:flush_table",
            ("    fence = acquire_fence(", "    view = reader.heads.read()\n    fence = acquire_fence("),
            ("    view = reader.heads.read()  # F2\n", ""),
        ),
    ),
    breaks(
        "F3",
        "no intent is written",
        edit("log.fence:HeldFence.commit", ("    self._advance(commit=key)\n", "")),
    ),
    breaks(
        "F3",
        "the intent is written over whatever is there",
        edit(
            "log.fence:write_fence",
            ("store.put_if_match(key, body, etag=etag)", "store.put(key, body)"),
        ),
    ),
    breaks(
        "F4",
        "a seal is vacuumed at once",
        edit("clean.vacuum_plan:_expired_seals", ("file.modified_ms + config.seal_age_ms", "file.modified_ms")),
    ),
    breaks(
        "F4",
        "a seal is merged away like any log file",
        edit("merge.log_index:LogIndex.active_files", ("not file.log.is_seal and ", "")),
        edit("merge.merge_log:build_merge_log", ("and not file.log.is_seal  # F4", "  # F4")),
    ),
)

MERGE_RULES: Final = (
    breaks(
        "M1",
        "live markers of the log files involved are not carried",
        edit("merge.merge_log:_carried_markers", ("[live[path] for path in sorted(live)] + ", "")),
    ),
    breaks(
        "M1",
        "dead markers of the log files involved are not carried",
        edit("merge.merge_log:_carried_markers", (" + [dead[path] for path in sorted(dead)]", "")),
    ),
    breaks(
        "M1",
        "log tombstones of the log files involved are not carried",
        edit(
            "merge.merge_log:_carried_log_tombstones",
            ("for tombstone in file.log.log_tombstones:", "for tombstone in ():"),
        ),
    ),
    breaks(
        "M1",
        "the log files involved get no tombstone",
        edit(
            "merge.merge_log:_carried_log_tombstones",
            ("carried.setdefault(file.key, LogTombstone(file.key, time_ms))", "pass"),
        ),
    ),
    breaks(
        "M1",
        "the inputs get no tombstone",
        edit(
            "merge.merge_log:build_merge_log",
            (
                "for marker in inputs.values()]",
                "for marker in ()]",
            ),
        ),
    ),
    breaks(
        "M1",
        "outputs with columns that the table has not are committed",
        edit("merge.content_check:compare_contents", ("if others:", "if False:")),
    ),
    breaks(
        "S2",
        "a merge forgets what was widened",
        edit("merge.merge_log:build_merge_log", ("        widened=_widened(known),\n", "")),
    ),
    breaks(
        "S2",
        "a merge writes the wider type into its schema line",
        edit(
            "merge.merge_log:build_merge_log",
            ("schema=known.logged,", "schema=known.effective,"),
            ("        widened=_widened(known),\n", ""),
        ),
    ),
    breaks(
        "S2",
        "a merge says of what it carries what it knows of its outputs",
        edit("merge.merge_log:_find_inexact", ("carried=carried", "carried=()")),
    ),
    breaks(
        "S2",
        "a log file that says nothing of its values proves that they are exact",
        edit("log.fold:union_schema", ("if log.inexact is None or log.inexact:", "if log.inexact:")),
    ),
    breaks(
        "S2",
        "what another commit said of its values counts",
        edit(
            "log.codec:_decode_inexact",
            ('return inexact if "cid" in metadata and value.get("cid") == metadata["cid"] else None', "return inexact"),
        ),
    ),
    breaks(
        "S2",
        "a column becomes wider without a look at what merges have committed since",
        edit("ingest.widening_commit:WideningCommit.commit", ("self._require_proven(columns)", "pass")),
    ),
    breaks(
        "S2",
        "a column becomes wider by a commit that the fence of merges does not announce",
        edit("ingest.widening_commit:WideningCommit.commit", (", beside=merging", "")),
    ),
    breaks(
        "S2",
        "a column becomes wider under the fence of ingest alone",
        edit("ingest.flush:_Run._commit", ("if proven:", "if False:")),
    ),
    keeps(
        "R3",
        "a merge forgets the horizon",
        edit("merge.merge_log:build_merge_log", ("horizon_ms=read_horizon_ms(view) or None", "horizon_ms=None")),
    ),
)

READ_RULES: Final = (
    breaks(
        "R1",
        "no second look after a listing of many pages",
        edit(
            "log.reader:ConsistentReader._read_once", ("self._list() if listing.page_count > 1 else listing", "listing")
        ),
    ),
    breaks(
        "R1",
        "a dead log file behind the listing is overlooked",
        edit(
            "log.reader:ConsistentReader._read_once", ("if self._misses_a_dead_log_file(current, second):", "if False:")
        ),
    ),
    breaks(
        "R1",
        "log files are read without If-Match",
        edit(
            "log.reader:LogReader._fetch_one",
            ("self._store.get(info.key, if_match=info.etag)", "self._store.get(info.key)"),
        ),
    ),
    breaks(
        "R1",
        "the cache is kept by key alone",
        edit("log.reader:_is_current", ("file is not None and file.etag == info.etag", "file is not None")),
    ),
    breaks(
        "R2",
        "a slow refresh is taken",
        edit("log.reader:ConsistentReader._read_once", ("> self._max_refresh_ms", "> 1 << 60")),
    ),
    breaks(
        "R3",
        "no time is refused",
        edit("log.fold:fold", ("as_of_ms < horizon_ms:", "False:")),
    ),
    breaks(
        "R3",
        "a strip does not record the horizon",
        edit(
            "clean.vacuum_plan:strip_log_file",
            (
                "horizon_ms=max([read_horizon_ms(view), log.horizon_ms or 0, *stripped_ms]) or None",
                "horizon_ms=log.horizon_ms",
            ),
        ),
    ),
    breaks(
        "R3",
        "the horizon ignores log files that are gone without a strip",
        edit("log.fold:read_horizon_ms", ("if tombstone.path not in present", "if False")),
    ),
)
