"""Teacher-forced values of answers, per item: `torch_alm.language`'s."""

from __future__ import annotations

from torch_alm.language import AnswerScores, answer_scores, losses

__all__ = ["AnswerScores", "answer_scores", "losses"]
