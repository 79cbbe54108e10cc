"""How much is to be forgotten: a loss, a certified rate, or the level of text never seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torch_alm import thresholds
from torch_alm.cli.refusal import Refusal
from torch_alm.language import LanguageModel, Row, Tokenizer, losses, pad_id
from torch_alm.measures import (
    margin_certificate_of_logits,
    require_attainable,
    token_nll_of_logits,
)

DEFAULT_ALPHA = 4.0
TAU = 0.1


@dataclass(frozen=True)
class Goal:
    """The constraint `measure >= alpha`, and where the alpha is from.

    Attributes:
        kind: `"loss"`, in nats per answer token; or `"rate"`, the certified share of answers that
            greedy decoding misses.
        alpha: the level.
        source: in words, for the report.
    """

    kind: Literal["loss", "rate"]
    alpha: float
    source: str

    @property
    def unit(self) -> str:
        """What alpha counts."""
        return "nats per token" if self.kind == "loss" else "of answers, certified"

    def measure(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What the constraint sees, with the gradient that raises it.

        The certificate is seen with every sequence counting at least 0, so that one remembered
        answer does not rule the mean; its gradient is that of the mean without the floor, which
        remembered answers need (they would have none).
        """
        if self.kind == "loss":
            return token_nll_of_logits(logits, labels)
        raised = margin_certificate_of_logits(logits, labels, tau=TAU)
        seen = margin_certificate_of_logits(logits.detach(), labels, tau=TAU, clamp=True)
        return raised + (seen - raised.detach())


def check_goal(alpha: float | None, certify: float | None) -> None:
    """Refuse a level that nothing could reach, or that everything meets.

    Raises:
        Refusal: it says which.
    """
    if alpha is not None and not 0 < alpha < math.inf:
        raise Refusal(
            f"--alpha {alpha:g} asks for nothing, or for what no model reaches. Did you mean 4, in "
            "nats per token?"
        )
    if certify is None:
        return
    try:
        require_attainable(certify, TAU)
    except ValueError as error:
        raise Refusal(f"--certify {certify:g}: {error}") from error
    if certify <= 0:
        raise Refusal(f"--certify {certify:g} is met from the start. Did you mean 0.95?")


def goal_of(
    alpha: float | None,
    certify: float | None,
    unseen: Sequence[Row],
    model: LanguageModel,
    tokenizer: Tokenizer,
) -> Goal:
    """The goal of a command line; measured on `unseen` rows if neither number is given."""
    if certify is not None:
        return Goal("rate", certify, "--certify")
    if alpha is not None:
        return Goal("loss", alpha, "--alpha")
    if unseen:
        found = losses(model, unseen, pad_id(tokenizer))
        level = thresholds.level_of(torch.tensor, found)
        told = f"the loss of {len(found)} rows never seen, standard error {level.error:.2f}"
        return Goal("loss", level.value, told)
    return Goal("loss", DEFAULT_ALPHA, "the default; --holdout measures one")
