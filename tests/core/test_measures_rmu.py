"""RMU: hidden states and where they are steered."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from torch_alm import measures
from torch_alm.measures import _representation as representation

WIDTH = 6


class Stack(nn.Module):
    """An embedding and three layers; the second returns a tuple, as decoder layers may."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Paired(), nn.Linear(WIDTH, 5)])
        self.unused = nn.Linear(1, 1)
        self.double()

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, _ = self.layers[1](self.layers[0](self.embed(input_ids)))
        return self.layers[2](hidden)


class Paired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
        return self.linear(hidden).tanh(), None


def make_batch() -> dict[str, Tensor]:
    ids = torch.tensor([[0, 1, 2, 3], [4, 3, 2, 0], [1, 1, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
    return {"input_ids": ids, "labels": ids.masked_fill(~mask, -100)}


def states(model: Stack, batch: dict[str, Tensor]) -> Tensor:
    return model.layers[1](model.layers[0](model.embed(batch["input_ids"])))[0]


def oracle_distance(hidden: Tensor, target: Tensor, labels: Tensor) -> float:
    """Mean over sequences of the means over their chosen tokens of the mean square."""
    target = target.expand_as(hidden)
    sequences = []
    for b in range(hidden.shape[0]):
        tokens = [
            sum((x - y) ** 2 for x, y in zip(h.tolist(), g.tolist(), strict=True)) / len(h)
            for t, (h, g) in enumerate(zip(hidden[b], target[b], strict=True))
            if labels[b, t] != -100
        ]
        if tokens:
            sequences.append(sum(tokens) / len(tokens))
    return sum(sequences) / len(sequences)


def test_steering_vector_is_positive_of_length_one_and_repeatable() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    direction = measures.steering_vector(1000, seed=7)
    assert torch.equal(torch.rand(1), expected)  # the global random state is left alone
    assert direction.min() >= 0
    assert direction.norm().item() == pytest.approx(1.0, abs=1e-6)
    assert direction.max().item() == pytest.approx((3 / 1000) ** 0.5, rel=0.05)  # of U[0, 1)
    assert torch.equal(direction, measures.steering_vector(1000, seed=7))
    assert not torch.equal(direction, measures.steering_vector(1000, seed=8))
    rounded = measures.steering_vector(1000, seed=7, dtype=torch.bfloat16)
    exact = measures.steering_vector(1000, 7, dtype=torch.float64)
    assert torch.equal(rounded, exact.bfloat16())
    drawn = torch.rand(1000, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    assert torch.equal(exact, drawn / drawn.norm())


@pytest.mark.parametrize("by_name", [True, False])
def test_rmu_is_the_loops(by_name: bool) -> None:
    model, batch = Stack(), make_batch()
    u = measures.steering_vector(WIDTH, dtype=torch.float64)
    layer = "layers.1" if by_name else model.layers[1]
    target, hidden = 2.5 * u, states(model, batch)
    found = measures.rmu(model, batch, layer, u, 2.5)
    assert found.item() == pytest.approx(
        oracle_distance(hidden, target, batch["labels"]), rel=1e-13
    )
    if_not_said = measures.rmu(model, batch, layer, u)
    assert torch.equal(if_not_said, measures.rmu(model, batch, layer, u, 6.5))


def test_rmu_retain_is_the_loops_and_zero_at_the_reference() -> None:
    model, reference, batch = Stack(0), Stack(1), make_batch()
    found = measures.rmu_retain(model, batch, "layers.1", reference)
    expected = oracle_distance(states(model, batch), states(reference, batch), batch["labels"])
    assert found.item() == pytest.approx(expected, rel=1e-13)
    assert measures.rmu_retain(model, batch, "layers.1", Stack(0)) == 0


def test_gradients_reach_the_layer_and_below_but_not_the_reference() -> None:
    model, reference, batch = Stack(0), Stack(1), make_batch()
    graphs = []
    reference.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    u = measures.steering_vector(WIDTH, dtype=torch.float64).requires_grad_()
    value = measures.rmu(model, batch, "layers.1", u)
    (value + measures.rmu_retain(model, batch, "layers.1", reference)).backward()
    assert model.layers[0].weight.grad.abs().max() > 0
    assert model.layers[1].linear.weight.grad.abs().max() > 0
    assert model.layers[2].weight.grad is None
    assert all(parameter.grad is None for parameter in reference.parameters())
    assert graphs == [False]
    assert u.grad is None


def test_padding_and_garbage_off_the_mask_change_nothing() -> None:
    batch, u = make_batch(), measures.steering_vector(WIDTH, dtype=torch.float64)
    hidden = states(Stack(), batch).detach()
    places = representation.find_labelled(batch)
    spoiled = hidden.masked_fill(~places.mask[..., None], float("nan"))
    found = representation.distance(spoiled, u, places)
    assert torch.equal(found, representation.distance(hidden, u, places))


def test_the_hook_is_removed_and_the_batch_kept() -> None:
    model, batch = Stack(), make_batch()
    names = list(batch)
    measures.rmu(model, batch, "layers.1", torch.ones(WIDTH))
    assert list(batch) == names
    assert not model.layers[1]._forward_hooks
    with pytest.raises(IndexError):
        representation.hidden_states(model, {"input_ids": torch.tensor([[99]])}, "layers.1")
    assert not model.layers[1]._forward_hooks  # also after an exception


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_states_are_widened(dtype: torch.dtype) -> None:
    hidden = torch.full((1, 2, 4), 300.0, dtype=dtype)  # its square overflows fp16
    places = representation.find_labelled({"labels": torch.zeros(1, 2).long()})
    found = representation.distance(hidden, torch.zeros(4, dtype=dtype), places)
    assert found.dtype == torch.float32
    assert found == 90_000


def test_errors_name_what_is_missing() -> None:
    model, batch, u = Stack(), make_batch(), torch.ones(WIDTH)
    with pytest.raises(ValueError, match=r"'layers\.9', but Stack has no"):
        measures.rmu(model, batch, "layers.9", u)
    with pytest.raises(ValueError, match="never ran layer `unused`"):
        measures.rmu(model, batch, "unused", u)
    with pytest.raises(ValueError, match="never ran layer `Paired`"):
        measures.rmu(model, batch, Stack().layers[1], u)
    with pytest.raises(ValueError, match="no `labels`"):
        measures.rmu(model, {"input_ids": batch["input_ids"]}, "layers.1", u)
    batch["labels"].fill_(-100)
    with pytest.raises(ValueError, match="no token is left"):
        measures.rmu(model, batch, "layers.1", u)


def test_a_decoder_layer_of_transformers_gives_its_hidden_states() -> None:
    pytest.importorskip("transformers")
    from tests.models import llama

    model = llama(7, num_hidden_layers=3).eval()
    batch = make_batch()
    found = representation.hidden_states(model, batch, "model.layers.1")
    theirs = model(input_ids=batch["input_ids"], output_hidden_states=True).hidden_states[2]
    assert_close(found, theirs, rtol=0, atol=0)
    measures.rmu(model, batch, "model.layers.1", measures.steering_vector(16)).backward()
    assert model.model.layers[1].mlp.down_proj.weight.grad is not None
    assert model.model.layers[2].mlp.down_proj.weight.grad is None
