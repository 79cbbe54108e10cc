"""Lines of code that a user types."""

from __future__ import annotations

import inspect
from typing import Any


def code_lines(*parts: Any) -> int:
    """Lines of code in bodies: a class's own first line counts, a function's signature does not."""
    count = 0
    for part in parts:
        lines = [line for line in inspect.getsource(part).splitlines() if line.strip()]
        first = next(i for i, line in enumerate(lines) if line.rstrip().endswith(":"))
        count += len(lines) - first - 1 + inspect.isclass(part)
    return count
