"""What the command says instead of a traceback."""


class Refusal(Exception):
    """A sentence for the user: what was found, what would have happened, and what may be meant."""
