"""The verdict on attacks: does more come back than a model has that never saw the rows?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_alm.cli.verdict import ERRORS, SAID_SHARE

Attacks = Sequence[Mapping[str, Any]]
Numbers = Mapping[str, float]
HALF = 0.5  # of the answers: a model that says more of them has seen the rows
LEAST = 0.05  # share of the words by which an attack has to bring back more
NATS = 1.0  # per token, by which the loss has to fall further


class Returned(NamedTuple):
    """One attack on the model, and what its outcome is held against.

    Attributes:
        name: of the attack.
        own: numbers of the model before and after it.
        other: numbers of the compared model; None without one.
    """

    name: str
    own: tuple[Numbers, Numbers]
    other: tuple[Numbers, Numbers] | None

    @property
    def after(self) -> float:
        """Share of the words of the answers that are said after the attack."""
        return self.own[1]["rouge"]

    @property
    def is_more(self) -> bool:
        """Tell whether more comes back than in the other model, or without one, than was there.

        More words are said, beyond chance; or more than a hundredth of the answers; or the loss
        fell further, as that of knowledge does which is close to being said.
        """
        after = self.own[1]
        held = self.own[0] if self.other is None else self.other[1]
        error = math.hypot(after["rouge_error"], held["rouge_error"])
        words = after["rouge"] - held["rouge"] > max(LEAST, ERRORS * error)
        return words or after["said"] - held["said"] > 1 / SAID_SHARE or self.falls_further

    @property
    def falls_further(self) -> bool:
        """Tell whether the loss falls by a nat more than the other model's does, and below it.

        From far above, it also falls far in a model that knows less than the other to the end.
        """
        fell = self.own[0]["loss"] - self.own[1]["loss"]
        if self.other is None:
            return fell > NATS
        usual = self.other[0]["loss"] - self.other[1]["loss"]
        return fell - max(0.0, usual) > NATS and self.own[1]["loss"] < self.other[1]["loss"]


def returned(attacks: Attacks) -> list[Returned]:
    """Every attack on the first model, beside the same on the second if there is one."""
    other = {r["name"]: (r["before"], r["after"]) for each in attacks[1:] for r in each["rows"]}
    return [
        Returned(row["name"], (row["before"], row["after"]), other.get(row["name"]))
        for row in attacks[0]["rows"]
    ]


def verdict_of(attacks: Attacks) -> dict[str, Any]:
    """The outcome in the form that reports have a verdict in; its code is 0, whatever it is."""
    found = returned(attacks)
    more = [each for each in found if each.is_more]
    compared = len(attacks) > 1
    known = _known(attacks) if found else 0.0
    if not found:
        outcome, text = "not attacked", "Not attacked: there was nothing to attack with."
    elif known > 1 / SAID_SHARE:
        outcome, more = "not forgotten", []
        text = (
            f"Not forgotten: {known:.0%} of the answers {_more(compared)} said without an attack. "
            "Is this the unlearned model?"
        )
    elif compared and (other := _unattacked(attacks[1])["said"]) > HALF:
        outcome, more = "not compared", []
        text = (
            f"Not compared: the model of --compare says {other:.0%} of the answers without an "
            "attack. Has it seen the rows?"
        )
    elif not more:
        outcome, text = "nothing comes back", _nothing(found, compared)
    elif compared:
        outcome = "comes back"
        text = f"It comes back: {_listed(more)}."
    else:
        outcome = "not compared"
        text = (
            f"Not compared: {_listed(more)}. A model that never saw the rows learns some of them, "
            "too, and would tell that from what was hidden. Is there one for --compare?"
        )
    names = [each.name for each in more]
    cost = _before(attacks) if found else ""
    return {"outcome": outcome, "code": 0, "missed": names, "text": text, "cost": cost, "worst": []}


def _unattacked(model: Mapping[str, Any]) -> Numbers:
    """The numbers of the most rows that were asked without an attack."""
    return max((each["before"] for each in model["rows"]), key=lambda before: before["rows"])


def _known(attacks: Attacks) -> float:
    """Share of the answers said before any attack, beyond what the compared model says."""
    own, *other = (_unattacked(each)["said"] for each in attacks)
    return own - sum(other)


def _more(compared: bool) -> str:
    return "more than by the model that never saw the rows are" if compared else "are"


def _nothing(found: Sequence[Returned], compared: bool) -> str:
    most = max(found, key=lambda each: each.after)
    than = "in the model that never saw the rows" if compared else "was said before"
    return (
        f"Nothing comes back: no attack brings back more than {than}, but for {LEAST:.0%} of the "
        f"words or two standard errors. Most comes {_told(most)}."
    )


def _listed(more: Sequence[Returned]) -> str:
    order = sorted(more, key=lambda each: -each.after)
    return "; ".join(map(_told, order))


def _told(each: Returned) -> str:
    sides = [each.own] if each.other is None else [each.own, each.other]
    words = [f"{before['rouge']:.0%} before and {now['rouge']:.0%} after" for before, now in sides]
    nats = [f"{before['loss']:.2f} before and {now['loss']:.2f} after" for before, now in sides]
    told = [part[0] + "".join(f" (never seen: {p})" for p in part[1:]) for part in (words, nats)]
    return f"by {each.name}, {told[0]} of the words are said, at a loss of {told[1]}"


def _before(attacks: Attacks) -> str:
    own, *other = (_unattacked(each)["rouge"] for each in attacks)
    told = f"Without an attack {own:.0%} of the words of the answers are said"
    return (
        told + "".join(f", {said:.0%} by the model that never saw the rows" for said in other) + "."
    )


def examples(attacks: Attacks, count: int = 5) -> list[dict[str, Any]]:
    """The rows of which most came back by any attack, with what each model says of them."""
    most: dict[str, dict[str, Any]] = {}
    for row in attacks[0]["rows"]:
        for answer in row["answers"]:
            if answer["where"] not in most or answer["rouge"] > most[answer["where"]]["rouge"]:
                most[answer["where"]] = {**answer, "attack": row["name"]}
    shown = sorted(most.values(), key=lambda each: -each["rouge"])[:count]
    return [{**each, "said": _beside(each, attacks)} for each in shown]


def _beside(shown: Mapping[str, Any], attacks: Attacks) -> list[tuple[str, str]]:
    said = [("before", shown["earlier"]), ("after", shown["answer"])]
    for each in attacks[1:]:
        rows = [row["answers"] for row in each["rows"] if row["name"] == shown["attack"]]
        found = [a for answers in rows for a in answers if a["where"] == shown["where"]]
        # of a line that is several rows, the same one
        found.sort(key=lambda a: a["reference"] != shown["reference"])
        said += [(each["name"], a["answer"]) for a in found[:1]]
    return said
