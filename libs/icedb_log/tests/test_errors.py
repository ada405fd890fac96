"""Errors: one tree, and each says what the caller does."""

import inspect

from icedb_log import errors


def kinds():
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def test_every_error_is_one_of_ours_and_says_what_to_do():
    for kind in kinds():
        assert issubclass(kind, errors.IceDBError)
        assert "What the caller does:" in kind.__doc__, kind


def test_what_stops_a_table_is_told_from_what_is_tried_again():
    halting = {kind for kind in kinds() if issubclass(kind, errors.HaltError)} - {errors.HaltError}
    found_here = {errors.CorruptLog, errors.SchemaConflict, errors.UnsupportedFormat, errors.InvariantViolated}
    assert halting == found_here | {errors.TableHalted}
    retried = (errors.Unavailable, errors.CommitConflict, errors.CommitOutcomeUnknown, errors.Fenced)
    assert not any(issubclass(kind, errors.HaltError) for kind in retried)
    # A lost answer must never be handled as a certain refusal, nor the other way round (W2).
    assert not issubclass(errors.CommitOutcomeUnknown, errors.CommitConflict)
    assert not issubclass(errors.CommitOutcomeUnknown, errors.Unavailable)
