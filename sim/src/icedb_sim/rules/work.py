"""How the rules of the janitor and of ingest are switched off."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, keeps

_LIST: Final = "staged = list_staged(store, paths, limit=limits.listed_batches, skip=limits.skip)"
_STAGE_RETRY: Final = "stage_batch(store, paths, body=payload.body, staging_format=payload.format, batch_id=retry_id)"
_DELETE_RETRIED: Final = "_delete_entry(store, paths, found.entry)"

JANITOR_RULES: Final = (
    breaks(
        "J1",
        "a tombstone's age is its committer's word",
        edit(
            "clean.guards:Holds.guard_log",
            ("expires_ms = death.died_ms + grace_ms", "expires_ms = death.tombstoned_ms + grace_ms"),
        ),
        edit(
            "clean.guards:Holds.guard_data",
            ("expires_ms = death.died_ms + grace_ms", "expires_ms = death.tombstoned_ms + grace_ms"),
        ),
    ),
    breaks(
        "J1",
        "a tombstone's age is its proof of landing alone",
        edit(
            "clean.guards:Holds.guard_log",
            ("expires_ms = death.died_ms + grace_ms", "expires_ms = death.landed_ms + grace_ms"),
        ),
        edit(
            "clean.guards:Holds.guard_data",
            ("expires_ms = death.died_ms + grace_ms", "expires_ms = death.landed_ms + grace_ms"),
        ),
    ),
    breaks(
        "J1",
        "a new tombstone claims to have landed when its input was made",
        edit(
            "merge.merge_log:build_merge_log",
            ("tombstoned_ms=time_ms, landed_ms=None)", "tombstoned_ms=time_ms, landed_ms=view.store_now_ms)"),
        ),
    ),
    breaks(
        "J2",
        "staged copies are not deleted before the log files that know them",
        edit("clean.vacuum_run:VacuumRun.delete_all", ("stuck=self._delete_copies(staged)", "stuck=set()")),
    ),
    breaks(
        "J2",
        "log files go although a staged copy could not be deleted",
        edit("clean.vacuum_run:VacuumRun._delete_log_files", ("if not stuck.isdisjoint(batch_ids)", "if False")),
    ),
    breaks(
        "J2",
        "log files go although a batch that they refused is still staged",
        edit("clean.vacuum:vacuum_table", ("    plan = _hold_refusals(plan, view, staged)\n", "")),
    ),
    breaks(
        "J2",
        "a vacuum lists staging before it reads the log",
        edit(
            "clean.vacuum:vacuum_table",
            (
                "    view = reader.read()\n",
                code(
                    "    logs = [file.log for file in reader.read().files]",
                    "    named = {i for log in logs for i in (*log.batch_ids, *log.refused_ids)}",
                    "    staged = find_staged(store, paths, named)",
                    "    view = reader.read()",
                    "",
                ),
            ),
            ("    staged = find_staged(store, paths, decided)\n", ""),
        ),
    ),
    breaks(
        "J2",
        "data files go although a log file still lists them as live",
        edit(
            "clean.vacuum_run:VacuumRun._delete_data_files",
            ("set(self._plan.data_paths) - self._live\n", "set(self._plan.data_paths)\n"),
        ),
        edit(
            "clean.vacuum_plan:_find_expired_data",
            ("elif path not in named or path in still_live:", "elif path not in named:"),
        ),
    ),
    breaks(
        "J2",
        "data files go although their log file could not be deleted",
        edit(
            "clean.vacuum_run:VacuumRun._delete_data_files",
            ("set(self._plan.data_paths) - self._live\n", "set(self._plan.data_paths)\n"),
        ),
    ),
    keeps(
        "J2",
        "markers are stripped of data files that could not be deleted",
        edit(
            "clean.vacuum_run:VacuumRun._delete_data_files",
            (
                "self._gone_data |= self._note(done)",
                "self._gone_data |= self._note(done) | {marker.path for marker in doomed}",
            ),
        ),
    ),
    keeps(
        "J2",
        "log files are stripped before the data files of their part are deleted",
        edit(
            "clean.vacuum_run:VacuumRun._delete_data_files",
            ("self._gone_data |= self._note(done)", "self._note(done)"),
            (
                "        try:\n",
                code(
                    "        self._gone_data |= {marker.path for marker in doomed}",
                    "        self._strip_part(portions)",
                    "        try:",
                    "",
                ),
            ),
        ),
    ),
    breaks(
        "J2",
        "tombstones are stripped of log files that could not be deleted",
        edit(
            "clean.vacuum_run:VacuumRun._strip",
            ("gone_logs=self._gone_logs", "gone_logs=self._gone_logs | set(self._plan.log_keys)"),
        ),
    ),
    breaks(
        "J3",
        "a strip replaces whatever is there",
        edit(
            "clean.vacuum_run:VacuumRun._strip",
            ("self._store.put_if_match(file.key, body, etag=file.etag)", "self._store.put(file.key, body)"),
        ),
    ),
    breaks(
        "J4",
        "leases are ignored",
        edit("clean.holds:read_holds", ("(leases or LeaseReader()).read(store, paths, latest_ms=now_ms).leases", "()")),
    ),
    breaks(
        "J4",
        "a lease believes the time that a committer gave its tombstones",
        edit(
            "clean.guards:Holds._guards_of_times",
            ("if lease.held_from_ms < death.seen_dead_ms", "if lease.at_ms < death.tombstoned_ms"),
        ),
    ),
    breaks(
        "J4",
        "leases are read before the log",
        edit(
            "clean.vacuum:vacuum_table",
            (
                "    view = reader.read()\n",
                code(
                    "    from icedb_log.clean.leases import read_leases",
                    "    early = read_leases(store, paths)",
                    "    view = reader.read()",
                    "",
                ),
            ),
            (
                "    plan = plan_vacuum(view, config=config, holds=holds)\n    if",
                code(
                    "    holds = replace(holds, leases=early)",
                    "    plan = plan_vacuum(view, config=config, holds=holds)",
                    "    if",
                ),
            ),
        ),
    ),
    keeps(
        "J1",
        "a vacuum does not look at the store's clock",
        edit(
            "clean.vacuum:vacuum_table",
            ("        check_store_clock(store, paths.clock_key, clock=clock)", "        pass"),
        ),
    ),
    breaks(
        "J10",
        "objects are announced when they are deleted, not before",
        edit(
            "clean.deletion:Deleter.delete_chunks",
            ("self._audit.announce(chunk)", "pass"),
            ("self._delete_chunk(chunk)", "self._delete_chunk(chunk); self._audit and self._audit.announce(chunk)"),
        ),
    ),
)

INGEST_RULES: Final = (
    breaks(
        "I2",
        "staged batches are deleted before the commit",
        edit(
            "ingest.flush:_Run.decide",
            (
                "committed_key = self._commit(",
                code(
                    "delete_or_raise(self.store, [batch.key for batch in output.accepted])",
                    "        committed_key = self._commit(",
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
                "    view = reader.heads.read()  # F2\n",
                f"    {_LIST}\n    view = reader.heads.read()\n",
            ),
            (f"    {_LIST}\n    sorted", "    sorted"),
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
            "ingest.flush:_Run.decide",
            (
                "    committed_key: str | None = None\n",
                code(
                    "    committed_key: str | None = None",
                    "    for refusal in rejected:",
                    "        quarantine_batch(self.store, self.paths, rejected=refusal, clock=self.clock)",
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
        edit("ingest.flush:_Run._quarantine_bad_rows", ("    self.fence.confirm()\n    for bad", "    for bad")),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written over whatever is there",
        edit(
            "ingest.quarantine:quarantine_rows",
            ("if replaces is None:", "if not store.put(key, body):"),
            ("store.put_if_match(key, body, etag=replaces)", "pass"),
        ),
    ),
    breaks(
        "I5",
        "the reason of bad rows is written after the commit",
        edit(
            "ingest.flush:_Run.decide",
            ("        self._quarantine_bad_rows(output, commit_id)\n", ""),
            (
                "        self.fence.release()\n",
                "        self.fence.release()\n        self._quarantine_bad_rows(output, commit_id)\n",
            ),
        ),
    ),
    breaks(
        "I5",
        "what is refused leaves no copy in quarantine",
        edit("ingest.refusals:quarantine_batch", ("            store.put(payload_key(paths, batch), body)\n", "")),
    ),
    breaks(
        "I5",
        "a retry deletes the batch before it is staged again",
        edit(
            "ingest.quarantine_ops:retry_quarantined",
            (f"{_STAGE_RETRY}\n    {_DELETE_RETRIED}\n", f"{_DELETE_RETRIED}\n    {_STAGE_RETRY}\n"),
        ),
    ),
    breaks(
        "I5",
        "the reason of a batch goes before the batch",
        edit(
            "ingest.quarantine_ops:_delete_entry",
            (
                "(_payloads_of(store, paths, entry), [reason_key(paths, entry.batch_id)])",
                "([reason_key(paths, entry.batch_id)], _payloads_of(store, paths, entry))",
            ),
        ),
    ),
    breaks(
        "I6",
        "what a flush leaves out for its size is cleared from staging",
        edit(
            "ingest.flush:_Run.decide",
            ("[batch.key for batch in output.accepted]", "[b.key for b in (*output.accepted, *output.left_out)]"),
        ),
    ),
)
