"""Section 10: seven billion random weights, within what is counted without them."""

from __future__ import annotations

from functools import partial

from transformers import MistralConfig

from benchmarks import methods
from benchmarks.studies.accelerator.checks import Absent, Check, Place, Seen
from benchmarks.studies.accelerator.memory import TOY, measured
from benchmarks.studies.memory import Case, cases


def checks(place: Place) -> list[Check]:
    """The cases of the study of memory in which SAUL trains; for a look, one that is no RMU."""
    config = MistralConfig(**(TOY if place.quick else {}), use_cache=False)
    found = [case for case in cases() if case.key == "saul"]
    if place.quick:  # RMU steers the seventh layer, and a toy has one
        found = [case for case in found if case.settings.losses != "rmu" and not case.how.lora]
    return [
        Check(f"{methods.label(case.key)}: {case.what}", partial(fits, config=config, case=case))
        for case in found
    ]


def fits(place: Place, config: MistralConfig, case: Case) -> Seen:
    """The peak of two steps against the count."""
    if case.settings.optimizer == "adamw8bit" and not place.is_cuda:
        raise Absent("8-bit moments are counted with a stand-in, which a CPU does without")
    if case.settings.optimizer == "adamw8bit":
        place.need_package("torchao", "a moment of 8 bits")
    tokens = (case.tokens[0], 16) if place.quick else case.tokens
    return measured(place, config, case._replace(tokens=tokens))
