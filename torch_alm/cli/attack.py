"""`torch-alm attack`: what of the forgotten comes back."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch_alm import language
from torch_alm.cli import files
from torch_alm.cli.evaluate import plain_content, published
from torch_alm.cli.loading import Files, format_of, load_for, read_files
from torch_alm.cli.measuring import numbers, said
from torch_alm.cli.output import REPORTS, Output
from torch_alm.cli.report import Result
from torch_alm.language import Attacked, Attacks, Reading, Row, Tokenizer

Say = Callable[[str], None]
MAX_NEW_TOKENS = 200


def attack(given: argparse.Namespace, say: Say) -> Result:
    """Attack one model, or two for comparison."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    reworded = (
        files.read_entries(given.paraphrases, "paraphrases", given.columns)
        if given.paraphrases
        else found.forget
    )
    output = Output(given.output, REPORTS)
    output.check([given.model, given.compare], force=given.force)
    models = {"model": given.model, "compared": given.compare}
    attacks = [
        {"name": name, "rows": attacked(given, name, path, found, reworded, say)}
        for name, path in models.items()
        if path is not None
    ]
    content = plain_content(given, f"Attacks on {Path(given.model).name}", [], attacks)
    return published(given, output, content, begun)


def attacked(
    given: argparse.Namespace,
    name: str,
    path: str,
    found: Files,
    reworded: Sequence[files.Entry],
    say: Say,
) -> list[dict[str, Any]]:
    """All attacks on the model under one path."""
    loaded = load_for(given, path, found)
    tokenizer = loaded.tokenizer
    if reworded is found.forget:
        asked = files.paraphrased_rows(tokenizer, reworded, given.max_length, format_of(given))
    else:
        encoded = files.encode_entries(tokenizer, reworded, given.max_length, format_of(given))
        asked = [row for _, row in encoded]
    if not asked:
        say("No paraphrases: neither --paraphrases nor a paraphrased_question in the rows.")
    settings = Attacks(
        relearn_rows=given.relearn,
        relearn_steps=given.relearn_steps,
        relearn_lr=given.relearn_lr,
        prefix=given.prefix,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    forget = loaded.rows("forget")[: given.rows]
    attacks = language.attack(
        loaded.model,
        tokenizer,
        forget,
        loaded.rows("retain"),
        settings,
        paraphrased=asked[: given.rows],
        max_new_tokens=MAX_NEW_TOKENS,
        autocast=loaded.place.context(),
    )
    return [summary(tokenizer, each) for each in _told(attacks, name, say)]


def _told(attacks: Iterator[Attacked], name: str, say: Say) -> Iterator[Attacked]:
    for each in attacks:
        say(f"{name}: {each.name}")
        yield each


def summary(tokenizer: Tokenizer, each: Attacked) -> dict[str, Any]:
    """One attack as a row of the report."""
    return {
        "name": each.name,
        "attacker": each.attacker,
        "before": _numbers(tokenizer, each.asked, each.before),
        "after": _numbers(tokenizer, each.rows, each.after),
        "answers": [reading.text for reading in each.after],
    }


def _numbers(
    tokenizer: Tokenizer, rows: Sequence[Row], readings: Sequence[Reading]
) -> dict[str, float]:
    return numbers(readings, [said(tokenizer, *each) for each in zip(rows, readings, strict=True)])
