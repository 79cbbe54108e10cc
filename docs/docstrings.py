"""Fences around the examples of docstrings: in Markdown `>>>` alone begins a quotation."""

import re
from typing import Any

import griffe

# A line with a prompt, and what follows it down to an empty line.
PROMPT = re.compile(r"^( *)>>> .*(?:\n\1 *\S.*)*", re.MULTILINE)


class Fences(griffe.Extension):
    """Put each example between fences."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = PROMPT.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
