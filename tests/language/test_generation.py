"""Greedy answers: where they end, in which batches they are asked for, and which are not."""

import math
from itertools import takewhile
from typing import Any, ClassVar

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken
from transformers import (
    BartConfig,
    BartForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    RwkvConfig,
    RwkvForCausalLM,
)

from tests.language.conftest import ROWS, Words
from torch_alm.language import AnswerScores, continuations, generate, greedy_answers


@pytest.mark.parametrize(("own", "said"), [(None, 3), (5, 3), ([5], 3), (7, 0), ([5, 7], 0)])
def test_an_answer_ends_where_the_model_says_it_does(parrot: Any, own: Any, said: int) -> None:
    parrot.generation_config.eos_token_id = own
    assert continuations(parrot, Words(), [[1, 2]], max_new_tokens=3) == [[7] * said]


def test_a_row_may_end_where_its_text_says_so_and_a_batch_where_every_row_has(parrot: Any) -> None:
    asked: list[str] = []

    def is_over(text: str) -> bool:
        asked.append(text)
        return text == "w7 w7"

    found = continuations(parrot, Words(), [[1, 2], [3]], max_new_tokens=9, is_over=is_over)
    assert found == [[7, 7]] * 2
    assert asked == ["w7", "w7", "w7 w7", "w7 w7"]


def test_what_a_model_says_for_certain_is_not_asked_of_it(parrot: Any) -> None:
    """The model would say w7; an answer it gives with more than half of the probability is told."""
    known = AnswerScores([math.log(0.6)] * 3, [True] * 3, [0.2] * 3, -1.0)
    doubtful = known._replace(log_probabilities=[0.0, math.log(0.4), 0.0])
    cut = {"input_ids": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]}
    rows, scores = [ROWS[0], ROWS[1], cut], [known, doubtful, known]
    found = greedy_answers(parrot, Words(), rows, scores, max_new_tokens=3)
    assert found == ["w3 w4", "w7 w7 w7", "w7 w7 w7"], "what was cut may go on"
    assert greedy_answers(parrot, Words(), rows[:1], scores[:1], max_new_tokens=1) == ["w3"]


def test_prompts_of_like_lengths_are_asked_together(
    parrot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def watch(*, input_ids: torch.Tensor, **given: Any) -> torch.Tensor:
        seen.append(tuple(input_ids.shape))
        return input_ids

    monkeypatch.setattr(parrot, "generate", watch)
    generate(parrot, Words(), [[1] * n for n in (5, 1, 4, 2, 3)], batch_size=2)
    assert seen == [(2, 2), (2, 4), (1, 5)]
    seen.clear()
    continuations(parrot, Words(), [[1, 2]] * 129)
    assert seen == [(128, 2), (1, 2)]


SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2}
MODELS = {
    "a state that a batch mixes up": lambda: RwkvForCausalLM(
        RwkvConfig(**SIZES, context_length=64)
    ),
    "positions that padding shifts": lambda: BartForCausalLM(
        BartConfig(vocab_size=40, d_model=32, decoder_layers=2, decoder_attention_heads=2,
                   decoder_ffn_dim=64, max_position_embeddings=64, is_decoder=True,
                   forced_eos_token_id=None)
    ),
    "neither": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    ),
    "neither, adapted": lambda: get_peft_model(
        MODELS["neither"](), LoraConfig(target_modules=["c_attn"], task_type="CAUSAL_LM",
                                        fan_in_fan_out=True)
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_the_one_to_a_prompt_alone(name: str) -> None:
    """Compare with `generate` of transformers, prompt by prompt."""
    torch.manual_seed(0)
    model: Any = MODELS[name]().eval()
    for weight in (p for p in model.parameters() if p.ndim > 1):
        torch.nn.init.normal_(weight, std=0.4)
    draws = torch.Generator().manual_seed(1)
    sizes = (3, 5, 9, 14, 20)
    prompts = [torch.randint(10, 40, (n,), generator=draws).tolist() for n in sizes]
    how = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    alone: list[list[int]] = []
    for prompt in prompts:
        mask = torch.ones(1, len(prompt), dtype=torch.long)
        ids = model.generate(torch.tensor([prompt]), attention_mask=mask, **how)
        alone.append([*takewhile(lambda i: i != 0, ids[0, len(prompt) :].tolist())])
    model.generation_config.eos_token_id = None
    shapes: list[int] = []
    ask = model.generate
    model.generate = lambda **given: (shapes.append(len(given["input_ids"])), ask(**given))[1]
    assert continuations(model, Words(), prompts, max_new_tokens=8) == alone
    assert shapes == ([5] if "neither" in name else [1] * 5)


class Turns(Words):
    """A turn may close with w7, which is not the end of a sequence."""

    unk_token_id = 9
    added_tokens_decoder: ClassVar[dict[int, Any]] = {
        7: AddedToken("w7", special=True),
        8: AddedToken("w8", special=False),
        9: AddedToken("w9", special=True),
    }


@pytest.mark.parametrize(("last", "said"), [(7, ""), (8, "w7 w7"), (9, "w7 w7"), (0, "w7 w7")])
def test_an_answer_ends_with_what_ends_its_row(parrot: Any, last: int, said: str) -> None:
    doubtful = AnswerScores([math.log(0.4)] * 3, [True] * 3, [0.2] * 3, -1.0)
    row = {"input_ids": [1, 2, 3, 4, last], "labels": [-100, -100, 3, 4, last]}
    assert greedy_answers(parrot, Turns(), [row], [doubtful], max_new_tokens=2) == [said]
    known = doubtful._replace(log_probabilities=[0.0] * 3)
    ends = last in (0, 7)  # a row that does not was cut, and the model may go on
    expected = "w3 w4" if ends else "w7 w7"
    assert greedy_answers(parrot, Turns(), [row], [known], max_new_tokens=2) == [expected]


def test_a_header_of_the_models_own_is_asked_for_however_certain_the_answer_is(
    parrot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = AnswerScores([math.log(0.9)] * 2, [True] * 2, [0.8] * 2, -1.0)
    row = {"input_ids": [1, 2, 3, 4, 0], "labels": [-100, -100, -100, 4, 0], "asked": [1, 2]}
    assert greedy_answers(parrot, Words(), [row], [known], max_new_tokens=2) == ["w7 w7"]
    seen: list[Any] = []

    def watch(*, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        seen.append(input_ids.tolist())
        return input_ids

    monkeypatch.setattr(parrot, "generate", watch)
    greedy_answers(parrot, Words(), [row], [known])
    assert seen == [[[1, 2]]]
