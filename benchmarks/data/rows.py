"""Rows of JSON files, each with the place it stands: `torch_alm.language`'s."""

from __future__ import annotations

from torch_alm.language import Record as Row
from torch_alm.language import read_records as read_rows

__all__ = ["Row", "read_rows"]
