"""Errors that the command tells in a sentence, without a traceback."""


class Refusal(Exception):
    """A sentence for the user: what was found, what would have happened, and what may be meant."""


class Unwritten(Refusal):
    """A file that could not be written: the disk is full, or read-only, or gone."""
