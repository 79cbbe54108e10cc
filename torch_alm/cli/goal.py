"""The level of forgetting asked for: a loss, a certified rate, or that of text never seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torch_alm import thresholds
from torch_alm.language import LanguageModel, Row, Tokenizer, losses, pad_id
from torch_alm.measures import certified_failure_of_logits, require_attainable, token_nll_of_logits
from torch_alm.unlearning.refusal import Refusal

DEFAULT_ALPHA = 4.0
TAU = 0.1
WORDS = 0.5


@dataclass(frozen=True)
class Goal:
    """The constraint `measure >= alpha`, and where the alpha is from.

    Attributes:
        kind: `"loss"`, in nats per answer token; or `"rate"`, the certified share of answers that
            greedy decoding misses.
        alpha: the level.
        source: in words, for the report.
        error: standard error of the level where it was measured, 0 where it was given.
        words: share of an answer's words that may still be said, on average: half, or what the
            original model says of rows that it has never seen, if that is more.
    """

    kind: Literal["loss", "rate"]
    alpha: float
    source: str
    error: float = 0.0
    words: float = WORDS

    @property
    def unit(self) -> str:
        """The unit of alpha, in words."""
        return "nats per token" if self.kind == "loss" else "of answers, certified"

    def measure(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The value that the constraint sees, with the gradient that raises it.

        That of a rate is `certified_failure`: in what is seen one remembered answer does not rule
        the mean, and yet it has a gradient.
        """
        if self.kind == "loss":
            return token_nll_of_logits(logits, labels)
        return certified_failure_of_logits(logits, labels, tau=TAU)


def check_goal(alpha: float | None, certify: float | None) -> None:
    """Refuse a level that nothing could reach, or that everything meets."""
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


def beyond_knowledge(goal: Goal, model: LanguageModel) -> str | None:
    """A sentence where a loss is asked for that is above ln V, what a uniform guess costs."""
    uniform = math.log(model.get_output_embeddings().weight.shape[0])
    if goal.kind == "rate" or goal.alpha <= uniform:
        return None
    return (
        f"The level of {goal.alpha:.2f} nats per token ({goal.source}) is above {uniform:.2f}, the "
        "loss of a model that knows nothing and guesses: it has to be sure of other answers, which "
        f"costs what shall be kept. Did you mean --alpha {0.9 * uniform:.1f} or less?"
    )


def goal_of(
    alpha: float | None,
    certify: float | None,
    unseen: Sequence[Row],
    model: LanguageModel,
    tokenizer: Tokenizer,
) -> Goal:
    """The goal of a command line; measured on `unseen` rows if neither number is given.

    Raises:
        Refusal: there is a single unseen row, of which no level can be made.
    """
    if certify is not None:
        return Goal("rate", certify, "--certify")
    if alpha is not None:
        return Goal("loss", alpha, "--alpha")
    if len(unseen) == 1:
        raise Refusal(
            "--holdout has a single row, and a level from it would be known to no precision at "
            "all. Are there two or more, or did you mean --alpha?"
        )
    if unseen:
        found = losses(model, unseen, pad_id(tokenizer))
        level = thresholds.level_of(torch.tensor, found)
        told = f"the loss of {len(found)} rows never seen, standard error {level.error:.2f}"
        return Goal("loss", level.value, told, level.error)
    return Goal("loss", DEFAULT_ALPHA, "the default; --holdout measures one")


def check_unreached(goal: Goal, forget: Mapping[str, float]) -> None:
    """Refuse a rate that a model reaches which says the answers: nothing would push.

    Args:
        goal: what is asked for.
        forget: the numbers of the forget rows before the first step.
    """
    reached = forget["certificate"]
    if goal.kind != "rate" or reached < goal.alpha:
        return
    raise Refusal(
        f"{goal.source} {goal.alpha:g} is reached before the first step, at {reached:.1%}, by a "
        f"model that says {forget['rouge']:.0%} of the words: nothing would be forgotten. Does it "
        "go on where the rows end, with a full stop perhaps that they lack? (Of a long text one "
        "wrong word is enough.) Did you mean rows as it says them, or --alpha?"
    )


def with_unseen_words(goal: Goal, numbers: Mapping[str, float] | None) -> Goal:
    """The goal with the share of words that unseen rows get, within two standard errors."""
    if numbers is None:
        return goal
    return replace(goal, words=max(WORDS, numbers["rouge"] + 2 * numbers["rouge_error"]))
