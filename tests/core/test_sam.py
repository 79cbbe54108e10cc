"""SAM and ReverseSAM: gradients of objectives, and what happens at the edges."""

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW
from torch.utils.checkpoint import checkpoint

from tests import oracle
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

BOTH = pytest.mark.parametrize(("wrapper", "sign"), [(SAM, +1.0), (ReverseSAM, -1.0)])


def network(seed: int = 0) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.randn(6, 3, dtype=torch.float64)


def objective(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    return lambda: model(x).square().mean()


def snapshot(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same(found: list[Tensor], expected: list[Tensor], atol: float = 0.0) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@BOTH
def test_backward_is_the_gradient_at_the_perturbed_point(wrapper: type, sign: float) -> None:
    model, x = network()
    theta = list(model.parameters())
    expected, value = oracle.grad_sam(objective(model, x), theta, 0.3, sign)
    optimizer = wrapper(SGD(theta, lr=0.1), rho=0.3)
    loss = optimizer.backward(objective(model, x))
    assert loss.item() == pytest.approx(value, abs=1e-13) and not loss.requires_grad
    assert_same([p.grad for p in theta], expected, atol=1e-13)


@pytest.mark.parametrize("settable_later", [False, True])
def test_backward_fn_receives_the_raw_loss_and_owns_all_scaling(settable_later: bool) -> None:
    model, x = network()
    seen: list[float] = []

    def engine(loss: Tensor) -> None:
        seen.append(loss.item())
        (loss / 4).backward()

    clean = objective(model, x)().item()
    theta = list(model.parameters())
    plain = SAM(SGD(theta, lr=0.1), rho=0.3)
    perturbed = plain.backward(objective(model, x)).item()
    whole = [p.grad.clone() for p in theta]
    plain.zero_grad()
    engined = plain if settable_later else SAM(SGD(theta, lr=0.1), rho=0.3, backward=engine)
    engined.backward_fn = engine
    loss = engined.backward(objective(model, x), weight=0.5)
    # eps weighs a little more beside a gradient four times shorter
    assert seen == [clean, pytest.approx(perturbed, abs=1e-10)] and loss.item() == seen[1]
    assert_same([p.grad for p in theta], [g / 8 for g in whole], atol=1e-10)


def test_step_with_a_closure_is_self_contained_and_returns_the_clean_loss() -> None:
    model, x = network()
    twin, _ = network()
    by_closure = SAM(AdamW(model.parameters(), lr=1e-2), rho=0.3)
    by_verbs = SAM(AdamW(twin.parameters(), lr=1e-2), rho=0.3)

    def closure() -> Tensor:
        by_closure.zero_grad()
        loss = objective(model, x)()
        loss.backward()
        return loss

    for _ in range(5):
        expected = objective(twin, x)().item()
        by_verbs.zero_grad()
        by_verbs.backward(objective(twin, x))
        by_verbs.step()
        with torch.no_grad():  # a closure brings its own gradients, as under LBFGS
            assert by_closure.step(closure).item() == expected
    assert_same(snapshot(model), snapshot(twin))


def test_a_step_returns_what_its_closure_did_and_a_hook_may_bring_one() -> None:
    theta = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = SAM(SGD([theta], lr=0.0), rho=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = theta.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(lambda: closure().item()) == 25.0
    assert optimizer.step(lambda: print(closure())) is None
    assert optimizer.step(closure).dtype == torch.float32
    optimizer.register_step_pre_hook(lambda _, args, kwargs: ((args[0], closure), kwargs))
    assert optimizer.step(None) == 25


@pytest.mark.parametrize(
    ("result", "error", "sentence"),
    [
        (lambda y: y, ValueError, r"shape \(6, 1\).*Did you forget `\.mean\(\)`"),
        (lambda y: y.mean().item(), TypeError, r"returned float.*return the loss tensor"),
        (lambda y: y.mean().detach(), ValueError, "without a graph"),
        (lambda y: (y.mean(), y.mean()), TypeError, "returned tuple"),
    ],
)
def test_an_objective_that_returns_no_scalar_loss(
    result: Callable, error: type[Exception], sentence: str
) -> None:
    model, x = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    optimizer.backward(objective(model, x))
    theta, grads = snapshot(model), [p.grad.clone() for p in model.parameters()]
    with pytest.raises(error, match=r"SAM\.backward.*" + sentence):
        optimizer.backward(lambda: result(model(x)))
    with pytest.raises(TypeError, match=r"SAM\.backward takes an objective.*found Tensor"):
        optimizer.backward(model(x).mean())
    assert_same(snapshot(model), theta)
    assert_same([p.grad for p in model.parameters()], grads)


def test_bases_that_cannot_be_wrapped_are_named() -> None:
    model, _ = network()
    for make, told in (
        (lambda: SAM(SGD), r"the class SGD.*Did you mean `SAM\(AdamW\(params"),
        (lambda: ReverseSAM([*model.parameters()]), "^ReverseSAM wraps a torch.* and found list"),
        (lambda: SAM(model.parameters(), SGD), "found generator.*Did you mean `SAM"),
        (lambda: SAM(LBFGS(model.parameters())), "LBFGS evaluates a closure several times"),
    ):
        with pytest.raises(TypeError, match=told):
            make()


@pytest.mark.parametrize("outer", [SAM, ReverseSAM, DualOptimizer])
@pytest.mark.parametrize("inner", [SAM, ReverseSAM, DualOptimizer])
def test_what_takes_gradients_is_not_wrapped_to_be_stepped_alone(outer: type, inner: type) -> None:
    """Nobody would ask the inner one for a gradient; only its base would be seen to step."""
    sides = lambda: SGD([theta], lr=0.1)  # noqa: E731
    theta = nn.Parameter(torch.ones(2))
    inside = DualOptimizer(sides(), sides()) if inner is DualOptimizer else inner(sides(), rho=0.5)
    outside = {"retain": inside, "forget": sides()} if outer is DualOptimizer else {"base": inside}
    if outer is DualOptimizer and inner is SAM:
        assert outer(**outside).retain is inside
        return
    if outer is DualOptimizer and inner is ReverseSAM:
        with pytest.raises(ValueError, match=r"retain side is ReverseSAM.*`retain=SAM"):
            outer(**outside)
        return
    with pytest.raises(TypeError, match=rf"^{outer.__name__} found {inner.__name__} inside"):
        outer(**outside)


def test_the_first_pass_runs_in_a_context_of_its_own() -> None:
    model, x = network()
    log: list[str] = []

    @contextmanager
    def first() -> Iterator[None]:
        log.append("enter")
        yield
        log.append("leave")

    def seen() -> Tensor:
        log.append("pass")
        return objective(model, x)()

    optimizer = SAM(SGD(model.parameters(), lr=0.1), rho=0.1, first_pass=first)
    optimizer.backward(seen)
    assert log == ["enter", "pass", "leave", "pass"]


@BOTH
def test_frozen_parameters_may_move_in_the_backward_pass(wrapper: type, sign: float) -> None:
    """A codebook is updated by the forward pass, and by checkpointing once more."""
    theta, book = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3), requires_grad=False)
    with torch.inference_mode():
        fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            book.lerp_(x, 0.1)
        return (x - book).square().sum()

    optimizer = wrapper(SGD([theta, book, fixed], lr=0.1), rho=0.1)
    optimizer.backward(lambda: checkpoint(forward, theta, use_reentrant=False))
    optimizer.step()
    assert (theta != 1).all()


@pytest.mark.parametrize("drawing", [0, 1, 312])  # half a pair; one number; a whole round of words
@pytest.mark.parametrize("kind", ["MT19937", "Philox", "PCG64"])
def test_the_second_pass_draws_what_the_first_drew_with_numpy_and_python(
    kind: str, drawing: int
) -> None:
    np = pytest.importorskip("numpy")
    model, x = network()
    drawn: list[tuple[float, float]] = []
    usual = np.random.get_bit_generator()

    def draw() -> tuple[float, float]:
        found = np.random.rand(drawing)[-1] if drawing else np.random.randn()
        return random.random(), float(found)

    def objective() -> Tensor:
        drawn.append(draw())
        return model(x).square().mean()

    np.random.set_bit_generator(getattr(np.random, kind)(3))
    try:
        for _ in range(3):
            SAM(SGD(model.parameters(), lr=0.1)).backward(objective)
        drawn.append(draw())
    finally:
        np.random.set_bit_generator(usual)
    assert drawn[:6:2] == drawn[1:6:2]
    assert len({*drawn}) == 4


@pytest.mark.parametrize("by", ["an optimizer", "hooks of the gradient", "hooks after it"])
@pytest.mark.parametrize("kind", ["SAM", "DualOptimizer"])
def test_a_step_inside_the_backward_pass_is_refused(kind: str, by: str) -> None:
    """Fused, or as LOMO does it: the next pass would be about other weights."""
    model, x = network()
    theta = [*model.parameters()]
    inner = SGD(theta, lr=0.1)

    def step(p: Tensor) -> None:
        if by == "an optimizer":
            inner.step()
            return
        p.data.add_(torch.ones_like(p), alpha=-0.01)  # which no version tells of
        p.grad = None

    for p in theta:
        if by == "hooks of the gradient":
            p.register_hook(lambda _, p=p: step(p))
        p.register_post_accumulate_grad_hook(step)
    loss = objective(model, x)
    seen = "moved 4 parameters" if by == "an optimizer" else "step inside backward and clear"
    with pytest.raises(RuntimeError, match=rf"^{kind}\.backward: the backward pass .*{seen}"):
        if kind == "SAM":
            SAM(SGD(theta, lr=0.1)).backward(loss)
        else:
            DualOptimizer(SGD(theta), SGD(theta)).backward(retain=loss, forget=loss)


@pytest.mark.parametrize("wrapper", [SAM, DualOptimizer])
def test_an_optimizer_that_stands_for_those_that_step_inside_is_refused(wrapper: type) -> None:
    """Transformers hands out one over a tensor that nobody differentiates."""
    sides = [SGD([torch.zeros(1, 1)], lr=0.1)] * (1 + (wrapper is DualOptimizer))
    with pytest.raises(TypeError, match=r"SGD, none of whose parameters.*layerwise GaLore"):
        wrapper(*sides)


@pytest.mark.parametrize("side", ["retain", "forget"])
def test_the_loss_of_another_model_is_refused_and_nothing_has_happened(side: str) -> None:
    (model, x), (other, _) = network(), network(1)
    theta = [*model.parameters()]
    constraint = ALMConstraint(None, 5.0, 1.0)
    optimizer = DualOptimizer(SAM(SGD(theta)), ReverseSAM(SGD(theta)), constraint)
    given = {"retain": objective(model, x), "forget": objective(model, x)}
    with pytest.raises(RuntimeError, match=r"on any of 4 parameters.*loss of another model"):
        optimizer.backward(**given | {side: objective(other, x)})
    assert all(p.grad is None for p in theta) and constraint.observed == 0
    optimizer.backward(**given)


def test_both_sides_share_their_copies_of_large_weights_and_no_copy_of_them_has_any() -> None:
    theta = nn.Parameter(torch.ones(20_000))
    optimizer = DualOptimizer(SAM(SGD([theta]), 0.1), ReverseSAM(SGD([theta]), 0.1))
    places = []
    for _ in range(2):
        optimizer.backward(retain=lambda: theta.sum(), forget=lambda: theta.sum())
        places.append(optimizer.retain.memory[theta].data_ptr())
    assert places[0] == places[1]
    for each in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert each.retain.memory is each.forget.memory
        assert len(each.retain.memory) == (each is optimizer)
        assert type(each.retain.memory) is type(optimizer.retain.memory)


def test_a_copy_is_kept_only_where_it_fits() -> None:
    theta = nn.Parameter(torch.full((20_000,), 0.1))
    optimizer = SAM(SGD([theta], lr=0.0), rho=1.0)
    for dtype in (torch.float32, torch.float64):
        theta.data, theta.grad = theta.data.to(dtype) / 3, None
        before = theta.detach().clone()
        optimizer.backward(lambda: theta.sum())
        assert torch.equal(theta.detach(), before)


def test_a_constraint_sees_what_a_closure_measures_at_the_perturbed_point_alone() -> None:
    theta, constraint = (
        nn.Parameter(torch.tensor([3.0, 4.0])),
        ALMConstraint(None, alpha=40.0, mu=1),
    )
    optimizer = SAM(SGD([theta], lr=0.1), rho=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = theta.square().sum()
        constraint.observe(loss)
        loss.backward()
        return loss

    assert optimizer.step(closure) == 25
    assert constraint.observed == 1
    assert constraint.step() == pytest.approx(40 - 36)  # at theta it would be 15
