"""Greedy answers of a model: `torch_alm.language`'s."""

from __future__ import annotations

from torch_alm.language import decode, generate

__all__ = ["decode", "generate"]
