"""The measures that score answers by their likelihood, against loops over plain floats."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from torch_alm import measures

VOCABULARY = 7


class Bigram(nn.Module):
    """Each token's logits depend on that token alone: padding cannot reach an answer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(
            torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64) * 2
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[input_ids])


def make_batch(seed: int = 0, answers: tuple[int, ...] = (3, 1, 5), prompt: int = 2) -> dict:
    """Right-padded sequences: a prompt, then answers of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    width = prompt + max(answers)
    ids = torch.randint(VOCABULARY, (len(answers), width), generator=generator)
    positions = torch.arange(width)
    ends = prompt + torch.tensor(answers)[:, None]
    labels = ids.masked_fill((positions < prompt) | (positions >= ends), -100)
    return {"input_ids": ids, "attention_mask": (positions < ends).long(), "labels": labels}


def logits_and_labels(seed: int = 0, **shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    batch = make_batch(seed, **shape)
    generator = torch.Generator().manual_seed(seed + 1)
    size = (*batch["labels"].shape, VOCABULARY)
    return torch.randn(size, generator=generator, dtype=torch.float64) * 3, batch["labels"]


# --- oracles: plain loops that import nothing of ours ---------------------------------------------


def answer_rows(logits: Tensor, labels: Tensor) -> list[list[tuple[list[float], int]]]:
    """For each sequence, the (row of logits, target) pairs of its labelled tokens."""
    rows = zip(logits.tolist(), labels.tolist(), strict=True)
    return [
        [(row[t - 1], ids[t]) for t in range(1, len(ids)) if ids[t] != -100] for row, ids in rows
    ]


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = top + math.log(sum(math.exp(z - top) for z in row))
    return [z - total for z in row]


def oracle_nlls(logits: Tensor, labels: Tensor) -> list[list[float]]:
    sequences = answer_rows(logits, labels)
    return [[-log_softmax(row)[target] for row, target in tokens] for tokens in sequences]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def oracle_saturating(gains: list[float], beta: float) -> float:
    return mean([2 / beta * math.log1p(math.exp(-beta * gain)) for gain in gains])


def assert_value(found: Tensor, expected: float, tolerance: float = 1e-12) -> None:
    assert found.ndim == 0
    assert found.item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


# --- the contract of all -------------------------------------------------------------------------

FACES = {
    "token_nll": lambda model, batch: measures.token_nll(model, batch),
    "token_nll_by_token": lambda model, batch: measures.token_nll(model, batch, reduction="token"),
    "sequence_nll": lambda model, batch: measures.sequence_nll(model, batch),
    "log_odds": lambda model, batch: measures.log_odds(model, batch),
    "npo": lambda model, batch: measures.npo(model, batch, Bigram(1)),
    "simnpo": lambda model, batch: measures.simnpo(model, batch),
    "certificate": lambda model, batch: measures.certified_failure(model, batch),
    "certified_tokens": lambda model, batch: measures.certified_failure(
        model, batch, aggregate="mean"
    ),
    "failure": lambda model, batch: measures.exact_match_failure(model, batch),
    "failed_tokens": lambda model, batch: measures.exact_match_failure(
        model, batch, aggregate="mean"
    ),
    "kl_divergence": lambda model, batch: measures.kl_divergence(model, batch, Bigram(1)),
    "flattening": lambda model, batch: measures.flattening(model, batch),
}
every_face = pytest.mark.parametrize("face", FACES.values(), ids=FACES.keys())


@every_face
def test_padding_and_the_order_of_sequences_change_nothing(face: Callable) -> None:
    batch = make_batch()
    extra = torch.full((3, 4), 0)
    padded = {
        "input_ids": torch.cat((batch["input_ids"], extra), dim=1),
        "attention_mask": torch.cat((batch["attention_mask"], extra), dim=1),
        "labels": torch.cat((batch["labels"], extra - 100), dim=1),
    }
    shuffled = {name: value[[2, 0, 1]] for name, value in batch.items()}
    for other in (padded, shuffled):
        assert_close(face(Bigram(), other), face(Bigram(), batch), rtol=1e-14, atol=0)


@every_face
def test_a_sequence_without_labels_does_not_count(face: Callable) -> None:
    batch = make_batch()
    longer = {name: torch.cat((value, value[:1])) for name, value in batch.items()}
    longer["labels"][-1] = -100
    model = Bigram()
    assert_close(face(model, longer), face(model, batch), rtol=1e-14, atol=0)
    if face(model, longer).requires_grad:
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, not even a masked one
            face(model, longer).backward()
        assert model.table.grad is not None
        assert model.table.grad.isfinite().all()


@every_face
def test_the_batch_is_not_changed_and_the_labels_stay_away_from_the_model(face: Callable) -> None:
    batch = make_batch()
    before = {name: value.clone() for name, value in batch.items()}
    face(Bigram(), batch)  # Bigram.forward takes no `labels`: passing them would raise
    assert list(batch) == list(before)
    for name, value in before.items():
        assert torch.equal(batch[name], value)


@every_face
def test_float64_stays_and_a_plain_tensor_of_logits_will_do(face: Callable) -> None:
    model = Bigram()
    value = face(model, make_batch())
    assert value.dtype == torch.float64
    assert value.shape == ()
    plain = face(lambda **inputs: model(**inputs).logits, make_batch())
    assert torch.equal(plain, value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_face
def test_half_precision_is_computed_in_fp32(face: Callable, dtype: torch.dtype) -> None:
    model = Bigram().to(dtype)
    found = face(model, make_batch())
    assert found.dtype in (torch.float32, torch.float64)  # doubles where NPO's reference has them
    wide = Bigram().to(dtype).float()  # the same rounded weights
    assert_close(found, face(wide, make_batch()), rtol=1e-6, atol=1e-6)
    if found.requires_grad:
        found.backward()
        assert model.table.grad is not None
        assert model.table.grad.isfinite().all()


@every_face
def test_a_batch_that_cannot_be_measured_is_an_error(face: Callable) -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match=r"do not belong together|cannot be compared"):
        face(lambda **inputs: Bigram()(**inputs).logits[:, :-1], batch)
    batch["labels"].fill_(-100)
    with pytest.raises(ValueError, match=r"\(3, 7\) no token is left"):
        face(Bigram(), batch)
    for bad in ({"input_ids": batch["input_ids"]}, {k: v[0] for k, v in batch.items()}):
        with pytest.raises(ValueError, match=r"no `labels` of shape \(B, T\)"):
            face(Bigram(), bad)


class ForMaskedLM(Bigram):
    """A model by whose name its logits are for the tokens where they stand."""


class Seq2Seq(Bigram):
    config = SimpleNamespace(is_encoder_decoder=True)


class Headless(Bigram):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.table[input_ids])


@every_face
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ForMaskedLM(), "is not causal"),
        (Seq2Seq(), "is not causal"),
        (Headless(), "Headless gave a SimpleNamespace without `logits`.*AutoModelForCausalLM"),
    ],
)
def test_a_model_whose_logits_are_not_for_the_next_token_is_refused(
    face: Callable, model: Bigram, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        face(model, make_batch())


@every_face
def test_a_batch_without_names_is_refused_and_so_is_one_in_the_models_place(face: Callable) -> None:
    model, batch = Bigram(), make_batch()
    with pytest.raises(TypeError, match=r"The batch is a Tensor, and .* Did you swap"):
        face(model, batch["input_ids"])
    with pytest.raises(TypeError, match=r"The batch is a Bigram, and .* Did you swap"):
        face(batch, model)


@pytest.mark.parametrize("label", [VOCABULARY, -1])
@pytest.mark.parametrize("measure", [measures.token_nll, measures.certified_failure])
def test_a_label_that_no_logit_is_for_is_named(measure: Callable, label: int) -> None:
    logits, labels = logits_and_labels()
    labels[0, 3] = label
    with pytest.raises(ValueError, match=rf"`labels` go from .*{label}.* have 7 tokens"):
        measure(lambda: logits, {"labels": labels})


# --- token_nll, sequence_nll ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_reductions_are_the_loops(seed: int) -> None:
    logits, labels = logits_and_labels(seed)
    nlls = oracle_nlls(logits, labels)
    by_example = measures.token_nll(lambda: logits, {"labels": labels})
    by_token = measures.token_nll(lambda: logits, {"labels": labels}, reduction="token")
    assert_value(by_example, mean([mean(tokens) for tokens in nlls]))
    assert_value(by_token, mean([nll for tokens in nlls for nll in tokens]))
    assert abs(by_example.item() - by_token.item()) > 1e-3  # unequal lengths tell them apart
    batch = {"labels": labels}
    assert_value(measures.sequence_nll(lambda: logits, batch), mean([sum(t) for t in nlls]))
    sums = measures.sequence_nll(lambda: logits, batch, reduction="none")
    assert sums.tolist() == pytest.approx([sum(tokens) for tokens in nlls], rel=1e-13)
    means = measures.token_nll(lambda: logits, batch, reduction="none")
    assert means.tolist() == pytest.approx([mean(tokens) for tokens in nlls], rel=1e-13)


def test_log_odds_are_the_loops_and_those_of_a_token_known_by_heart_move() -> None:
    logits, labels = logits_and_labels()
    nlls = oracle_nlls(logits, labels)
    odds = [[-math.log(math.expm1(nll)) for nll in tokens] for tokens in nlls]
    batch = {"labels": labels}
    assert_value(measures.log_odds(lambda: logits, batch), mean([mean(row) for row in odds]))
    by_token = measures.log_odds(lambda: logits, batch, reduction="token")
    assert_value(by_token, mean([x for row in odds for x in row]))
    known = torch.zeros(1, 2, 4)
    known[0, 0, 1] = 60.0
    known.requires_grad_()
    found = measures.log_odds(lambda: known, {"labels": torch.tensor([[-100, 1]])})
    found.backward()
    assert_value(found, 60 - math.log(3), 1e-6)
    assert known.grad[0, 0].tolist() == pytest.approx([-1 / 3, 1, -1 / 3, -1 / 3])


@pytest.mark.parametrize("measure", [measures.sequence_nll, measures.token_nll])
def test_a_sequence_without_labels_is_zero_among_the_others(measure: Callable) -> None:
    batch = make_batch()
    batch["labels"][1] = -100
    assert (measure(Bigram(), batch, reduction="none") > 0).tolist() == [True, False, True]


def test_a_label_in_the_first_column_is_nobodys_prediction() -> None:
    labels = torch.full((1, 4), -100)
    labels[0, 0] = 3
    with pytest.raises(ValueError, match="first column"):
        measures.token_nll(lambda: torch.zeros(1, 4, VOCABULARY), {"labels": labels})


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[[6e4, -6e4], [0.0, 0.0]]], dtype=torch.float16)
    labels = torch.tensor([[-100, 1]])
    assert_value(measures.token_nll(lambda: logits, {"labels": labels}), 119_936.0, tolerance=1e-3)


@pytest.mark.parametrize(
    ("measure", "option", "value"),
    [
        (measures.token_nll, "reduction", "mean"),
        (measures.sequence_nll, "reduction", "sum"),
        (measures.certified_failure, "aggregate", "min"),
        (measures.exact_match_failure, "aggregate", "min"),
        (measures.flattening, "reduction", "sum"),
    ],
)
def test_an_unknown_option_is_named_with_its_alternatives(
    measure: Callable, option: str, value: str
) -> None:
    sentence = rf"`{option}` is '{value}'. Did you mean one of \w+, \w+"
    with pytest.raises(ValueError, match=sentence):
        measure(Bigram(), make_batch(), **{option: value})


def test_a_transformers_model_gives_its_own_loss() -> None:
    pytest.importorskip("transformers")
    from tests.models import llama

    model = llama(VOCABULARY).eval()
    batch = make_batch()
    with torch.no_grad():
        theirs = model(**batch).loss
    ours = measures.token_nll(model, batch, reduction="token")
    assert_close(ours, theirs, rtol=1e-6, atol=0)
    ours.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- npo, simnpo ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.015, 0.1, 2.0])
def test_npo_is_the_loops(seed: int, beta: float) -> None:
    logits, labels = logits_and_labels(seed)
    reference, _ = logits_and_labels(seed + 10)
    nlls, anchors = oracle_nlls(logits, labels), oracle_nlls(reference, labels)
    sums = torch.tensor([sum(tokens) for tokens in anchors], dtype=torch.float64)
    found = measures.npo(lambda: logits, {"labels": labels}, sums, beta=beta)
    gains = [sum(ours) - sum(theirs) for ours, theirs in zip(nlls, anchors, strict=True)]
    assert_value(found, oracle_saturating(gains, beta))


def test_npo_stays_finite_where_the_answer_is_remembered_far_better() -> None:
    logits, labels = torch.zeros(1, 2, 2, requires_grad=True), torch.tensor([[-100, 1]])
    value = measures.npo(lambda: logits, {"labels": labels}, torch.tensor([1e5]))
    assert_value(value, 2e5, tolerance=1e-4)
    value.backward()
    assert_close(logits.grad, torch.tensor([[[-1.0, 1.0], [0.0, 0.0]]]))  # slope -2, p = 1/2


def test_npo_takes_the_references_nlls_in_place_of_the_model() -> None:
    batch, reference = make_batch(), Bigram(1)
    sums = measures.sequence_nll(reference, batch, reduction="none")  # attached, on purpose
    value = measures.npo(Bigram(), batch, sums)
    assert torch.equal(value, measures.npo(Bigram(), batch, reference))
    value = measures.npo(Bigram().requires_grad_(False), batch, sums)
    assert not value.requires_grad


def test_the_reference_gets_no_gradient_and_keeps_its_mode() -> None:
    model, reference = Bigram(), Bigram(1).train()
    graphs = []
    reference.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    measures.npo(model, make_batch(), reference).backward()
    measures.kl_divergence(model, make_batch(), reference).backward()
    assert graphs == [False, False]  # it builds none
    assert reference.table.grad is None
    assert reference.training
    assert model.table.grad is not None


def test_npo_refuses_reference_nlls_of_another_batch() -> None:
    for reference in (torch.tensor(1.0), torch.ones(1), torch.ones(2)):
        with pytest.raises(ValueError, match="for 3 sequences"):
            measures.npo(Bigram(), make_batch(), reference)


@pytest.mark.parametrize("beta", [0.0, -0.1, math.nan, math.inf])
def test_beta_must_be_positive(beta: float) -> None:
    sentence = "`beta` is .*: the loss divides by it, and below 0 it would ask to remember. "
    with pytest.raises(ValueError, match=sentence):
        measures.npo(Bigram(), make_batch(), Bigram(), beta)
    with pytest.raises(ValueError, match=sentence):
        measures.simnpo(Bigram(), make_batch(), beta)


@pytest.mark.parametrize(("beta", "delta"), [(4.5, 0.0), (2.5, 0.0), (1.0, 0.7)])
def test_simnpo_is_the_loops(beta: float, delta: float) -> None:
    logits, labels = logits_and_labels()
    gains = [mean(tokens) - delta for tokens in oracle_nlls(logits, labels)]
    found = measures.simnpo(lambda: logits, {"labels": labels}, beta=beta, delta=delta)
    assert_value(found, oracle_saturating(gains, beta))


# --- kl_divergence, flattening -------------------------------------------------------------------


def test_kl_divergence_is_its_formula() -> None:
    logits, labels = logits_and_labels(0)
    reference, _ = logits_and_labels(5)
    batch, expected = {"labels": labels}, plain_kl(logits, reference, labels).item()
    found = measures.kl_divergence(lambda: logits, batch, lambda: reference)
    assert_value(found, expected)
    predicting = torch.nn.functional.pad(labels[:, 1:] != -100, (0, 1))
    said = reference.log_softmax(-1)[predicting]
    assert_value(measures.kl_divergence(lambda: logits, batch, said), expected)
    for other in (said[1:], said[:, 1:]):
        with pytest.raises(ValueError, match=r"9 labelled tokens and 7 words\. Do both models"):
            measures.kl_divergence(lambda: logits, batch, other)


def plain_kl(logits: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
    """By autograd, row by row."""
    p, q = (x[:, :-1].log_softmax(-1) for x in (logits, reference))
    chosen = labels[:, 1:] != -100
    rows = ((q.exp() * (q - p)).sum(-1) * chosen).sum(1) / chosen.sum(1)
    return rows.mean()


@pytest.mark.parametrize("words", [1, 3 * VOCABULARY, 10**6])
@pytest.mark.parametrize("masked", [True, False])
def test_a_divergence_in_pieces_has_the_gradient_of_the_whole(
    words: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_alm.measures._distribution.WORDS_AT_ONCE", words)
    logits, labels = logits_and_labels(0)
    reference, _ = logits_and_labels(5)
    labels = labels if masked else torch.zeros_like(labels)
    both = [logits.clone().requires_grad_() for _ in range(2)]
    reference.requires_grad_()
    found = measures.kl_divergence(lambda: both[0] * 1.5, {"labels": labels}, lambda: reference)
    (3 * found).backward(retain_graph=True)
    (-found).backward()
    (2 * plain_kl(both[1] * 1.5, reference.detach(), labels)).backward()
    assert_close(both[0].grad, both[1].grad, rtol=1e-12, atol=1e-14)
    assert reference.grad is None


def test_a_divergence_keeps_one_tensor_of_tokens_times_words() -> None:
    logits, labels = torch.randn(2, 33, 1024, requires_grad=True), torch.zeros(2, 33).long()
    said = torch.randn(64, 1024).log_softmax(-1)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        measures.kl_divergence(lambda: logits, {"labels": labels}, said)
    assert [x.shape for x in kept if x.numel() >= 1024] == [(64, 1024)]


def test_flattening_is_the_loops() -> None:
    logits, labels = logits_and_labels()
    heights = [
        [(max(row) - mean(row)) ** 2 for row, _ in tokens] for tokens in answer_rows(logits, labels)
    ]
    flat = [height for tokens in heights for height in tokens]
    assert_value(measures.flattening(lambda: logits, {"labels": labels}), mean(flat))
    by_example = measures.flattening(lambda: logits, {"labels": labels}, reduction="example")
    assert_value(by_example, mean([mean(tokens) for tokens in heights]))


def test_words_that_neither_model_can_say_add_nothing_to_a_divergence() -> None:
    """0 log 0 is 0, as for a vocabulary that is padded with -inf."""
    logits, reference = torch.randn(2, 1, 3, 5, dtype=torch.float64)
    banned = torch.full((1, 3, 2), -torch.inf, dtype=torch.float64)
    wider, other = (torch.cat([x, banned], -1) for x in (logits, reference))
    wider.requires_grad_()
    batch = {"labels": torch.zeros(1, 3).long()}
    found = measures.kl_divergence(lambda: wider, batch, lambda: other)
    plain = measures.kl_divergence(lambda: logits, batch, lambda: reference)
    torch.testing.assert_close(found, plain)
    found.backward()
    assert wider.grad is not None and wider.grad.isfinite().all()
