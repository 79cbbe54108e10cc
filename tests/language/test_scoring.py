"""Teacher-forced values: those of a row on its own, at no more cost than they need."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.language.conftest import ROWS, Words, asked
from tests.models import llama
from torch_alm.language import (
    answer_scores,
    continuations,
    extraction_strength,
    in_own_words,
    losses,
    string_nll,
)
from torch_alm.language._attacks import relearn
from torch_alm.language._generation import read_answers
from torch_alm.language._strings import string_scores


def test_a_loss_is_that_of_a_row_on_its_own(model: Any) -> None:
    rows = [{"input_ids": [1, 2, 0], "labels": [-100, 2, 0]}, *ROWS[:2]]
    found = losses(model, rows, 0)
    assert found == pytest.approx([asked(model, row)[0] for row in rows], abs=1e-5)


def test_a_model_that_cannot_leave_logits_out_says_the_same(model: Any) -> None:
    wanted, forward = losses(model, ROWS, 0), model.forward

    def whole(input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool) -> Any:
        assert use_cache is False, "nothing comes after what is only scored"
        return forward(input_ids, attention_mask=attention_mask, use_cache=use_cache)

    model.forward = whole
    assert losses(model, ROWS, 0) == pytest.approx(wanted, rel=1e-6)


def test_a_batch_has_as_many_rows_as_its_logits_have_room(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    kept: list[object] = []

    def watch(_: Any, __: Any, given: Any, found: Any) -> None:
        seen.append(tuple(given["input_ids"].shape))
        kept.append(found.past_key_values)

    monkeypatch.setattr("torch_alm.language._scoring.LOGITS_PER_BATCH", 12 * 5 * 2)
    model.register_forward_hook(watch, with_kwargs=True)
    short = {"input_ids": [1, 2, 0], "labels": [-100, 2, 0]}
    answer_scores(model, [short, *ROWS], 0, 0.1)
    assert seen == [(2, 5), (2, 5), (1, 3)], "12 words, and the longest rows first"
    assert kept == [None] * 3, "nothing comes after what is only scored"
    monkeypatch.setattr("torch_alm.language._scoring.LOGITS_PER_BATCH", 1)
    answer_scores(model, [short, *ROWS], 0, 0.1)
    assert seen[3:] == [(1, 5)] * 4 + [(1, 3)], "one row at least"


def test_logits_are_asked_for_where_a_row_of_the_batch_has_an_answer(model: Any) -> None:
    """A word is said by the position before it, so the last of the longest prompt counts."""
    rows = [
        {"input_ids": [1, 2, 3, 4, 0], "labels": [-100, -100, -100, -100, 0]},
        {"input_ids": [1, 2, 3, 4, 0], "labels": [-100, -100, -100, 4, 0]},
    ]
    seen: list[tuple[int, ...]] = []
    model.register_forward_hook(lambda _, __, found: seen.append(tuple(found.logits.shape)))
    losses(model, rows, 0)
    losses(model, [{"input_ids": [1, 2, 0], "labels": [1, 2, 0]}], 0)
    assert seen == [(2, 2, 12), (1, 2, 12)]


@pytest.mark.parametrize("at", [0, 1])
def test_a_row_with_nothing_to_score_is_refused(model: Any, at: int) -> None:
    rows = [*ROWS[:2]]
    rows.insert(at, {"input_ids": [1, 2, 3], "labels": [-100] * 3})
    with pytest.raises(ValueError, match=f"row {at} of 3 has no labelled token"):
        losses(model, rows, 0)


SIZES: dict[str, Any] = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 1}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "intermediate_size": 16}
T5 = T5Config(vocab_size=12, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)


class Saying(nn.Linear):
    config, device = SimpleNamespace(is_encoder_decoder=True), torch.device("cpu")


OTHERS: dict[str, Any] = {
    "by its configuration alone": lambda: Saying(1, 1),
    "encoder and decoder": lambda: T5ForConditionalGeneration(T5),
    "masked words": lambda: BertForMaskedLM(BertConfig(**SIZES, **HEADS)),
    "both sides": lambda: BertLMHeadModel(BertConfig(**SIZES, **HEADS)),
    "masked words, adapted": lambda: get_peft_model(
        BertForMaskedLM(BertConfig(**SIZES, **HEADS)), LoraConfig(target_modules=["query"])
    ),
}
FACES: dict[str, Any] = {
    "losses": lambda model: losses(model, ROWS, 0),
    "scores": lambda model: answer_scores(model, ROWS, 0, 0.1),
    "readings": lambda model: read_answers(model, Words(), ROWS),
    "answers": lambda model: continuations(model, Words(), [[1, 2]]),
    "relearning": lambda model: relearn(model, ROWS, 0, steps=1).__enter__(),
}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_is_not_causal_is_refused(name: str, face: str) -> None:
    """Its shapes fit, and every number would be of something else."""
    with pytest.raises(ValueError, match=r"is not causal"):
        FACES[face](OTHERS[name]())


@pytest.mark.parametrize("face", FACES)
def test_a_model_without_its_head_is_refused(face: str, model: Any) -> None:
    with pytest.raises(ValueError, match=r"LlamaModel .*without.* \(AutoModel for AutoModelFor"):
        FACES[face](model.model)


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=12, n_positions=6, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config).eval()
    model.generation_config.eos_token_id = None
    return model


def opt() -> Any:
    config = OPTConfig(**SIZES, num_attention_heads=2, ffn_dim=16, max_position_embeddings=6,
                       word_embed_proj_dim=16)  # fmt: skip
    return OPTForCausalLM(config).eval()


@pytest.mark.parametrize("make", [gpt2, opt])
def test_a_row_may_take_all_positions_and_no_more(make: Any) -> None:
    model = make()
    row = {"input_ids": [1, 2, 3, 4, 5, 0], "labels": [-100, -100, 3, 4, 5, 0]}
    short = {"input_ids": [1, 3, 0], "labels": [-100, 3, 0]}
    together = read_answers(model, Words(), [short, row])
    for reading, alone in zip(together, (short, row), strict=True):
        (found,) = read_answers(model, Words(), [alone])
        assert found.text == reading.text and len(found.text.split()) <= 6 - alone["labels"].count(
            -100
        )
    long = {name: [*values, 0] for name, values in row.items()}
    for ask in (losses, lambda *given: read_answers(given[0], Words(), given[1])):
        with pytest.raises(ValueError, match=r"row 1 of 2 has 7 tokens, and \w+ has 6 positions"):
            ask(model, [row, long], 0)
    with pytest.raises(ValueError, match=r"a prompt has 6 tokens, and .* has 6 positions"):
        continuations(model, Words(), [[1] * 6])


def test_a_reading_of_a_model_that_always_says_the_same(parrot: Any) -> None:
    """Worked values, and how far it is listened to."""
    rows = [ROWS[0], {"input_ids": [1, 2, 7, 0], "labels": [-100, -100, 7, 0]}]
    one, two = read_answers(parrot, Words(), rows, 11)
    assert one.text == two.text == " ".join(["w7"] * (3 + 8))
    worst = math.log(11 + math.e)
    assert one.loss == pytest.approx(worst, rel=1e-6)
    assert two.loss == pytest.approx(worst - 0.5, rel=1e-6)
    assert (one.exact_match, two.exact_match) == (False, False)
    said = {"input_ids": [1, 2, 7, 7], "labels": [-100, -100, 7, 7]}
    half = {"input_ids": [1, 2, 5, 7, 0], "labels": [-100, -100, 5, 7, 0]}
    found = read_answers(parrot, Words(), [said, half], 0)
    assert [reading.exact_match for reading in found] == [True, False]
    margin = (1 - math.e) / (11 + math.e)
    phi = 1 - math.log1p(math.exp(1 + margin / 0.01))
    every = answer_scores(parrot, [*rows, said, half], 0, 0.01)
    assert [score.certificate for score in every[:2]] == pytest.approx([phi] * 2, rel=1e-5)
    assert phi > 0
    assert [extraction_strength(score.matches[:-1]) for score in every] == [0, 1, 1, 0.5]
    assert [reading.text for reading in read_answers(parrot, Words(), rows, 2)] == ["w7 w7"] * 2
    assert [reading.text for reading in read_answers(parrot, Words(), rows, 0)] == [None, None]


PIECES = ["\u0120", "a", "b", "ab", "\u0120a", "\u0120ab", "aba", "aa"]  # the first is a blank
PAIRS = [("a", "b"), ("\u0120", "a"), ("\u0120a", "b"), ("ab", "a"), ("a", "a")]


@pytest.fixture
def spelt() -> tuple[Any, PreTrainedTokenizerFast]:
    """A model of float64 that knows nothing, and the eight pieces of its byte-level tokenizer."""
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, PAIRS))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="aab")
    model = llama(len(tokenizer)).double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.8)
    return model, tokenizer


def spellings(text: str) -> Iterator[list[int]]:
    """All ways to spell a text in the pieces, by trying each."""
    if not text:
        yield []
    for i, piece in enumerate(PIECES):
        if text.startswith(piece):
            yield from ([i, *more] for more in spellings(text[len(piece) :]))


@torch.no_grad()
def log_p(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> float:
    found = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
    return sum(found[len(prompt) + i - 1, token].item() for i, token in enumerate(ids))


@pytest.mark.parametrize("ids", [[5, 3], [1, 3, 4, 2], [0, 7, 6], [2]])
@pytest.mark.parametrize("ends", [True, False])
def test_the_loss_of_a_text_is_of_the_sum_over_all_its_spellings(
    spelt: Any, ids: list[int], ends: bool
) -> None:
    model, tokenizer = spelt
    end = [tokenizer.eos_token_id] * ends
    every = [[*way, *end] for way in spellings("".join(PIECES[i] for i in ids))]
    found = {tuple(way): log_p(model, [1, 2], way) for way in every}
    row = {"input_ids": [1, 2, *ids, *end], "labels": [-100, -100, *ids, *end]}
    total = -math.log(sum(map(math.exp, found.values()))) / len(row["labels"][2:])

    exact, quick = (
        string_scores(model, tokenizer, [row], 1.0, tolerance=share, most=most)[0]
        for share, most in ((0.0, math.inf), (0.05, 1.0))
    )
    assert exact.loss == pytest.approx(total, abs=1e-12) and exact.missing == 0
    assert quick.loss - quick.missing - 1e-12 <= total <= quick.loss + 1e-12
    assert quick.missing * len(row["labels"][2:]) <= math.log1p(0.05)
    assert string_nll(model, tokenizer, [row])[0] == pytest.approx(total, abs=0.01)
    (usual,) = losses(model, [row], 0)
    assert total <= usual + 1e-12 and (len(every) > 1 or total == pytest.approx(usual, abs=1e-12))
    best = max(found, key=lambda way: found[way])
    assert exact.exact_match or exact.row["input_ids"] == [1, 2, *best]
    assert exact.row["labels"] == [-100, -100, *exact.row["input_ids"][2:]]
    total = sum(map(math.exp, found.values()))
    carried = [math.exp(found[(*row["input_ids"][2:],)]) / total for _, row in exact.spellings]
    assert carried == pytest.approx([share for share, _ in exact.spellings], abs=1e-12)
    rest = sorted(
        math.exp(p) / total for way, p in found.items() if [1, 2, *way] != exact.row["input_ids"]
    )
    assert carried[1:] == pytest.approx(rest[::-1][: len(carried) - 1], abs=1e-12)
    assert sum(carried) >= 0.99 or len(carried) == min(4, len(found))
    assert sum(carried[:-1]) < 0.99, "one that carries as much has no other"


def test_a_text_is_known_where_greedy_decoding_says_it_in_any_tokens(
    spelt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is said is known, also to a row that spells it otherwise; nothing else is."""
    model, tokenizer = spelt
    monkeypatch.setattr("torch_alm.language._strings.ROWS_PER_BATCH", 0)
    for first in range(3, 8):
        (said,) = continuations(model, tokenizer, [[1, first]], max_new_tokens=3)
        ways = list(spellings("".join(PIECES[i] for i in said)))
        others = [[(i + 1) % 8 for i in way] for way in ways]
        rows = [{"input_ids": [1, first, *way], "labels": [-100, -100, *way]}
                for way in [*ways, *others]]  # fmt: skip
        texts = ["".join(PIECES[i] for i in row["input_ids"][2:]) for row in rows]
        found = string_scores(model, tokenizer, rows, 0.01, most=0.0)
        known = [text == texts[0] for text in texts]
        assert [score.exact_match for score in found] == known
        assert all(score.row["input_ids"][2:] == said for score in found[: len(ways)])
        bounds = [score.certificate for score in found]
        assert all(0 <= bound <= (not says) for bound, says in zip(bounds, known, strict=True))
        assert max(bounds) > 0.9


def test_a_check_costs_at_most_twice_what_one_spelling_does(
    spelt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts that nobody knows; greedy decoding is followed beyond that, if it says them."""
    model, tokenizer = spelt
    monkeypatch.setattr("torch_alm.language._strings.ROWS_PER_BATCH", 0)
    rows = [{"input_ids": [i, 5, 3, 1, 3], "labels": [-100, 5, 3, 1, 3]} for i in range(8)]
    seen = list[int]()
    model.register_forward_hook(lambda _, __, found: seen.append(len(found.logits)))
    usual = losses(model, rows, 0)
    seen.clear()
    found = string_scores(model, tokenizer, rows, 1.0, tolerance=1e-9)
    assert 8 < sum(seen) <= 16 and not any(score.exact_match for score in found)
    gains = [loss - score.loss for score, loss in zip(found, usual, strict=True)]
    assert min(gains) >= -1e-9 and max(gains) > 0


def test_tokens_without_a_label_and_texts_of_other_tokenizers_stay_as_they_are(
    spelt: Any, model: Any
) -> None:
    own, tokenizer = spelt
    row = {"input_ids": [1, 2, 5, 0, 1, 3], "labels": [-100, -100, 5, -100, 1, 3]}
    ways = [list(spellings("".join(PIECES[i] for i in run))) for run in ([5], [1, 3])]
    total = sum(
        math.exp(log_p(own, [1, 2], one) + log_p(own, [1, 2, *one, 0], two))
        for one, two in product(*ways)
    )
    found = string_scores(own, tokenizer, [row], 1.0, tolerance=0.0, most=math.inf)[0]
    assert found.loss == pytest.approx(-math.log(total) / 3, abs=1e-12)
    for _, row in found.spellings:
        at = row["labels"].index(-100, 2)
        assert row["input_ids"][at] == 0 and row["labels"].count(-100) == 3
        assert [row["input_ids"][2:at], row["input_ids"][at + 1 :]] in [
            [*w] for w in product(*ways)
        ]
    rows = [*ROWS, {"input_ids": [1, 2, 0], "labels": [1, 2, 0]}]
    assert string_nll(model, Words(), rows) == pytest.approx(losses(model, rows, 0), abs=1e-6)


def test_a_vocabulary_of_pieces_has_bytes_to_fall_back_to() -> None:
    pieces = [
        "</s>", "<0x61>", "<0xC3>", "<0xA4>", "\u2581", "a", "\u00e4", "\u2581a", "\u2581\u00e4",
    ]  # fmt: skip
    inner = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [("\u2581", "a")]))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")
    model = llama(len(pieces)).double().eval()
    for ids, ways in {(7,): [[7], [4, 5], [4, 1]], (8,): [[8], [4, 6], [4, 2, 3]]}.items():
        row = {"input_ids": [5, *ids], "labels": [-100, *ids]}
        total = -math.log(sum(math.exp(log_p(model, [5], way)) for way in ways))
        found = string_nll(model, tokenizer, [row], tolerance=0.0)
        assert found == pytest.approx([total], abs=1e-12)


def test_what_was_said_is_kept_in_the_tokens_in_which_it_was_said(spelt: Any) -> None:
    _, tokenizer = spelt
    said = [4, 2, 0, 1, 3, 4]  # " ab aab a"
    row = in_own_words(tokenizer, [2, 2], said, frozenset({"aab"}))
    assert row == {"input_ids": [2, 2, 4, 2, 0, 1, 3], "labels": [-100] * 5 + [1, 3]}
    assert in_own_words(tokenizer, [2], said, frozenset({"b"})) is None
