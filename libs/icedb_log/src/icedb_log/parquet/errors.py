"""Why a footer counts for nothing."""


class BadFooter(Exception):
    """A footer that cannot be read or cannot be true; the message says why, as the end of a sentence."""
