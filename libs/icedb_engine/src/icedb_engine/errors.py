"""The one exception of this package that never leaves it."""


class BatchRejected(Exception):
    """A batch cannot be taken (I5). The message is for its producer: what is wrong, where, and the remedy.

    What the caller does: put the batch among the rejected ones of its unit, and go on with the others.
    """


class BatchTooLarge(BatchRejected):
    """A batch is above a bound of decoded bytes or rows. A unit that takes small batches only leaves it out (I6)."""
