"""`torch-alm attack`: what of the forgotten comes back."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch_alm import language
from torch_alm.cli import files
from torch_alm.cli.evaluate import plain_content, published
from torch_alm.cli.files import Entry
from torch_alm.cli.loading import Files, format_of, load_for, read_files
from torch_alm.cli.measuring import (
    Encoded,
    as_asked,
    numbers,
    read_asked,
    read_rows,
    reference_of,
    said,
)
from torch_alm.cli.output import REPORTS, Output
from torch_alm.cli.report import Result
from torch_alm.cli.returning import verdict_of
from torch_alm.language import (
    Attacked,
    Attacks,
    Reading,
    Row,
    Tokenizer,
    decode,
    linear_weights,
    prompt_ids,
)
from torch_alm.unlearning.models import positions_of

Say = Callable[[str], None]
UNWORDED = "No paraphrases: neither --paraphrases nor a paraphrased_question in the rows."


def attack(given: argparse.Namespace, say: Say) -> Result:
    """Attack one model, or two for comparison."""
    begun = datetime.now(timezone.utc)
    found = read_files(given)
    reworded = (
        files.paired(
            files.read_entries(given.paraphrases, "paraphrases", given.columns), found["forget"]
        )
        if given.paraphrases
        else files.paraphrased(found["forget"])
    )
    output = Output(given.output, REPORTS)
    output.check([given.model, given.compare], force=given.force)
    notes: list[str] = [] if reworded else [UNWORDED]
    models = {"model": given.model, "compared": given.compare}
    attacks = [
        {"name": name, "rows": attacked(given, name, path, found, reworded, say, notes)}
        for name, path in models.items()
        if path is not None
    ]
    content = plain_content(given, f"Attacks on {Path(given.model).name}", [], attacks)
    notes = list(dict.fromkeys(notes))  # of two models, once
    for note in notes:
        say(note)
    return published(
        given, output, {**content, "verdict": verdict_of(attacks), "notes": notes}, begun
    )


def attacked(
    given: argparse.Namespace,
    name: str,
    path: str,
    found: Files,
    reworded: Sequence[tuple[Entry, Entry]],
    say: Say,
    notes: list[str],
) -> list[dict[str, Any]]:
    """All attacks on the model under one path; `notes` gets what was left out.

    `reworded` has forget rows, each with a row that asks it in other words.
    """
    loaded = load_for(given, path, found)
    model, tokenizer = loaded.model, loaded.tokenizer
    longest = min(given.max_length, positions_of(model))
    whole = loaded.sets["forget"]
    forget = [(entry, as_asked(entry, row)) for entry, row in whole[: given.rows]]
    before, others = beside(forget, reworded)
    asked = files.encode_entries(tokenizer, others, longest, format_of(given))
    if left := len(whole) - len(forget):
        notes.append(f"{left} of {len(whole)} forget rows were left out, by --rows {given.rows}.")
    bits = Attacks().bits if linear_weights(model) else ()
    if not bits:
        notes.append(f"{type(model).__name__} has no linear layer that could be rounded.")
    settings = Attacks(
        bits=bits,
        relearn_rows=given.relearn,
        relearn_steps=given.relearn_steps,
        relearn_lr=given.relearn_lr,
        prefix=given.prefix,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    entries, told = {id(row): entry for entry, row in [*forget, *asked]}, list[dict[str, Any]]()

    def read(rows: Sequence[Row]) -> list[Reading]:
        """Read the rows; those with a part of the answer given away are behind any header."""
        if all(id(row) in entries for row in rows):
            return read_asked(model, tokenizer, [(entries[id(row)], row) for row in rows])
        return read_rows(model, tokenizer, rows)

    attacks = language.attack(
        model,
        tokenizer,
        [row for _, row in forget],
        loaded.rows("retain"),
        settings,
        paraphrased=[row for _, row in asked],
        reworded=before,
        autocast=loaded.place.context(),
        read=read,
    )
    for each in attacks:
        say(f"{name}: {each.name}")
        told.append(summary(tokenizer, each, entries))
    notes += left_out({each["name"] for each in told}, given, is_reworded=bool(reworded))
    return told


def left_out(made: Collection[str], given: argparse.Namespace, *, is_reworded: bool) -> list[str]:
    """The attacks that were asked for and had nothing to ask, told."""
    found: list[str] = []
    if given.relearn and "relearn forget" not in made:
        found.append("Not relearned on forget rows: no others are left to be asked after it.")
    if is_reworded and "paraphrase" not in made:
        found.append("No paraphrases: there is none of a forget row that was asked.")
    if "answer prefix" not in made:
        found.append(f"No answers were begun: --prefix {given.prefix} leaves nothing to say.")
    return found


def beside(
    forget: Encoded, reworded: Sequence[tuple[Entry, Entry]]
) -> tuple[list[Row], list[Entry]]:
    """The rows of the forget entries that are reworded, and what they are reworded as."""
    rows: dict[int, list[Row]] = {}
    for entry, row in forget:
        rows.setdefault(id(entry), []).append(row)
    found = [(rows[id(entry)], other) for entry, other in reworded if id(entry) in rows]
    return [row for own, _ in found for row in own], [other for _, other in found]


def summary(tokenizer: Tokenizer, each: Attacked, entries: Mapping[int, Entry]) -> dict[str, Any]:
    """One attack as a row of the report; `entries` has those of the rows asked, by their id."""
    asked = [(entries[id(row)], row) for row in each.asked]
    references = [reference_of(tokenizer, entry, row) for entry, row in asked]
    questions = [decode(tokenizer, prompt_ids(row)) for _, row in asked]
    before = list(map(said, references, each.before, questions))
    texts = [reading.text for reading in each.before]
    of = {
        (entry.where, told): text
        for (entry, _), told, text in zip(asked, references, texts, strict=True)
    }
    answers: list[dict[str, Any]] = []
    for i, (row, reading) in enumerate(zip(each.rows, each.after, strict=True)):
        if id(row) in entries:
            told = _answer(tokenizer, entries[id(row)], row, reading)
            told["earlier"] = of.get((told["where"], told["reference"])) or ""
        else:  # made of the row that was asked
            told = _answer(tokenizer, asked[i][0], row, reading)
            told["earlier"] = texts[i] or ""
        answers.append(told)
    return {
        "name": each.name,
        "attacker": each.attacker,
        "before": numbers(each.before, before),
        "after": numbers(each.after, answers),
        "answers": answers,
    }


def _answer(tokenizer: Tokenizer, entry: Entry, row: Row, reading: Reading) -> dict[str, Any]:
    reference = reference_of(tokenizer, entry, row)
    return {
        "where": entry.where,
        "prompt": entry.prompt or decode(tokenizer, prompt_ids(row)),
        "reference": reference,
        "answer": reading.text or "",
        "loss": reading.loss,
        **said(reference, reading, decode(tokenizer, prompt_ids(row))),
    }
