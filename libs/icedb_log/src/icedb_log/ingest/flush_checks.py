"""What a flush demands of the data path's answer before it commits anything. Pure."""

from icedb_log.errors import InvariantViolated
from icedb_log.jobs import FlushJob, FlushOutput
from icedb_log.keys import TablePaths


def require_accounted(paths: TablePaths, job: FlushJob, output: FlushOutput) -> None:
    """Each batch of a job is decided once, deferred, or left out (I5); a job defers never all that it may take (I6)."""
    rejected = tuple(refusal.batch for refusal in output.rejected)
    undecided = (*output.deferred, *output.left_out)
    answered = [batch.batch_id for batch in (*output.accepted, *rejected, *output.missing, *undecided)]
    if sorted(answered) != sorted(batch.batch_id for batch in job.batches):
        raise InvariantViolated(f"table {paths.name}: the flush job did not decide each of its batches once (I5)")
    if output.left_out and job.sizes is None:
        raise InvariantViolated(
            f"table {paths.name}: the flush job left {len(output.left_out)} batches out, and was to take all sizes (I6)"
        )
    if output.deferred and len(undecided) == len(job.batches):
        raise InvariantViolated(
            f"table {paths.name}: the flush job deferred all of its {len(output.deferred)} batches: it would never "
            "end; one batch beyond the bound is committed alone (I6)"
        )
    if output.files and not output.accepted:
        raise InvariantViolated(f"table {paths.name}: the flush job accepted no batch, yet wrote data files (I5)")
    if output.row_count != sum(marker.row_count or 0 for marker in output.files):
        raise InvariantViolated(f"table {paths.name}: the flush job says {output.row_count} rows, its files differ")


def require_bad_rows(paths: TablePaths, job: FlushJob, output: FlushOutput) -> None:
    """Bad rows belong to accepted batches, lie in this table's quarantine, and only where its policy says so (I5)."""
    if output.bad_rows and job.config.on_bad_rows != "quarantine_rows":
        raise InvariantViolated(
            f"table {paths.name}: the flush job left rows out, but on_bad_rows is {job.config.on_bad_rows} (I5)"
        )
    accepted = {batch.batch_id for batch in output.accepted}
    for bad in output.bad_rows:
        if bad.batch.batch_id not in accepted:
            raise InvariantViolated(
                f"table {paths.name}: batch {bad.batch.batch_id} has bad rows, but is not accepted, or twice (I5)"
            )
        accepted.remove(bad.batch.batch_id)
        if bad.row_count < 1 or not bad.payload_key.startswith(paths.quarantine_prefix):
            raise InvariantViolated(
                f"table {paths.name}: {bad.row_count} bad rows of batch {bad.batch.batch_id} at {bad.payload_key}: "
                f"at least one is needed, below {paths.quarantine_prefix} (I5)"
            )


def require_contents(paths: TablePaths, output: FlushOutput) -> None:
    """What a flush job tells of contents is about the batches that it accepted (I8)."""
    if not output.contents.keys() <= {batch.batch_id for batch in output.accepted}:
        raise InvariantViolated(f"table {paths.name}: the flush job tells contents of batches that it left out (I8)")
