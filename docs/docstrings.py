"""Examples in docstrings become code blocks on the pages of the API."""

import re
from typing import Any

import griffe

# A line with a prompt, and what follows it down to an empty line.
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1 *\S.*)*", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Fence the `>>>` examples of a docstring: to Markdown, `>` alone begins a quotation."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Called with every object that was read."""
        if not obj.is_alias and obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
