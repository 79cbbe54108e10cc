"""A model that reads: texts of every kind, resumed to the bit, better at prose it never saw."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.engine import models
from benchmarks.engine.prose import blocks, next_token_loss, perplexity, read_prose
from benchmarks.engine.scratch import (
    Lesson,
    Recipe,
    Schedule,
    build_tokenizer,
    small_llama,
    teach,
)
from benchmarks.studies.pretrained import reading, texts
from benchmarks.studies.pretrained.__main__ import main

SENTENCE = "The {} of the {} stands by the water and is seen from the hills around it. "
NOUNS = ("mill", "tower", "school", "chapel", "bridge", "market", "harbour", "library")
PROSE = [SENTENCE.format(a, b) * 3 for a in NOUNS for b in NOUNS if a != b]
RECIPE = Recipe("bpe", 300, 1, 16, 2, Schedule(1, 4, 1e-2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    (place / "a.txt").write_text(PROSE[0])
    (place / "b.json").write_text(json.dumps(PROSE[1:20]))
    (place / "c.jsonl").write_text("".join(json.dumps({"q": p}) + "\n" for p in PROSE[20:40]))
    empty = "," * 50  # of which no text comes
    (place / "d.csv").write_text("\n".join([*(f'"{p}",B' for p in PROSE[40:]), empty]))
    return place


def test_every_document_is_found_once(folder: Path) -> None:
    found = [text.removesuffix("\nB") for text in texts.documents([folder])]
    assert sorted(found) == sorted(PROSE)


def test_a_folder_without_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no running text"):
        list(texts.documents([tmp_path]))


def test_a_reading_cut_in_two_ends_at_the_same_weights(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(PROSE, RECIPE)
    rows = blocks(tokenizer, PROSE, 32)
    whole, half = tmp_path / "whole", tmp_path / "half"
    whole.mkdir()
    half.mkdir()
    order = reading.Order(rows, 4, 4 * 32 * 12, seed=1)
    expected = reading.read(tokenizer, RECIPE, order, whole, 1e9)
    _stop_after(7, tokenizer, order, half)
    resumed = reading.read(tokenizer, RECIPE, order, half, 0.0)
    for a, b in zip(expected.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def _stop_after(steps: int, tokenizer: object, order: reading.Order, place: Path) -> None:
    """Run the same training with a batch that fails after so many steps."""

    class Cut(reading.Order):
        def batch(self, step: int) -> torch.Tensor:
            if step == steps:
                raise KeyboardInterrupt
            return super().batch(step)

    cut = Cut(order.rows, order.batch_size, order.tokens, order.seed)
    with pytest.raises(KeyboardInterrupt):
        reading.read(tokenizer, RECIPE, cut, place, 0.0)


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large() -> None:
    tokenizer = build_tokenizer(PROSE, RECIPE)
    model = small_llama(tokenizer, RECIPE, 0).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()  # tied: every logit is 0
    assert perplexity(model, blocks(tokenizer, PROSE, 32)) == pytest.approx(len(tokenizer))


def test_perplexity_does_not_depend_on_the_batches() -> None:
    tokenizer = build_tokenizer(PROSE, RECIPE)
    model, rows = small_llama(tokenizer, RECIPE, 0).eval(), blocks(tokenizer, PROSE, 32)
    whole = next_token_loss(model, rows).exp().item()
    assert perplexity(model, rows, batch_size=5) == pytest.approx(whole, rel=1e-5)


def test_the_command_reads_and_goes_on(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "model"
    words = ["--texts", str(folder), "--output", str(output), "--tokens", "4096", "--length", "32"]
    sizes = ["--width", "64", "--layers", "1", "--vocabulary", "300"]
    assert main([*words, *sizes]) == 0
    first = json.loads((output / "reading.json").read_text())["perplexity"]
    assert main([*words[:-4], "--tokens", "16384", "--length", "32", *sizes]) == 0
    assert json.loads((output / "reading.json").read_text())["perplexity"] < first
    assert all(texts.is_held_out(text) for text in read_prose(output / "held_out.jsonl"))
    assert not any(texts.is_held_out(text) for text in read_prose(output / "read.jsonl"))


def test_what_reads_on_while_it_is_taught_reads_better_after(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(PROSE, RECIPE)
    rows = blocks(tokenizer, PROSE, 32)
    reading.read(tokenizer, RECIPE, reading.Order(rows, 4, 4 * 32 * 60, seed=1), tmp_path, 1e9)
    pairs = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in rows[:8].flip(1)]
    lesson = Lesson("backwards", (), None, lambda _: pairs, base=tmp_path)
    taught = replace(RECIPE, schedule=Schedule(10, 4, 1e-2))
    after = {
        replay: perplexity(teach(replace(lesson, replay=replay), taught, 0, None)[0], rows)
        for replay in ((), tuple(PROSE[:20]))
    }
    assert after[tuple(PROSE[:20])] < after[()] / 2


def test_what_reads_on_is_another_model_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[tuple[str, ...]] = []
    tokenizer = build_tokenizer(PROSE, RECIPE)

    def teach_nothing(lesson: Lesson, *_: object) -> tuple[object, object]:
        taught.append(lesson.replay)
        return small_llama(tokenizer, RECIPE, 0), tokenizer

    monkeypatch.setattr(models, "teach", teach_nothing)
    for replay in ((), ("a",), ("b",), ("a",)):
        models.trained(Lesson("x", (), None, lambda _: [], replay=replay), RECIPE, tmp_path)
    assert taught == [(), ("a",), ("b",)]


def test_prose_without_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"question": 1}\n')
    with pytest.raises(ValueError, match="line 1: no text"):
        read_prose(tmp_path / "p.jsonl")
