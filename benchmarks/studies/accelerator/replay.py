"""Section 2: the second pass draws what the first one drew, wherever the weights are."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from benchmarks.studies.accelerator.checks import Check, Place, Seen, check
from torch_alm import SAM


def checks(_: Place) -> list[Check]:
    """Dropout is drawn on the device in each of them."""
    return [
        Check("weights on the device", partial(masks, on_host=False)),
        Check("weights on the host", partial(masks, on_host=True)),
        Check("weights on the host, frozen ones on the device", half_on_host),
        Check("random numbers go on where one pass would have left them", goes_on),
    ]


def drawn(place: Place, home: torch.device, *, replay: bool, steps: int = 2) -> list[Tensor]:
    """The dropout masks of both passes of so many steps."""
    torch.manual_seed(0)
    p, seen = nn.Parameter(torch.ones(64, device=home)), list[Tensor]()

    def objective() -> Tensor:
        kept = F.dropout(torch.ones(4096, device=place.device), 0.5)
        seen.append(kept.detach() > 0)
        return (p.to(place.device) * kept.view(64, 64).sum(0)).square().mean()

    optimizer = SAM(SGD([p], lr=0.1), rho=0.1, replay_rng=replay)
    for _ in range(steps):
        optimizer.backward(objective)
        optimizer.step()
        optimizer.zero_grad()
    return seen


def masks(place: Place, on_host: bool) -> Seen:
    """The same within a step, others in the next; without the replay all of them differ."""
    home = torch.device("cpu") if on_host else place.device
    one, two, three, four = drawn(place, home, replay=True)
    check(torch.equal(one, two) and torch.equal(three, four), "the passes drew other masks")
    check(not torch.equal(one, three), "the next step drew the same mask")
    first, second, *_ = drawn(place, home, replay=False)
    check(not torch.equal(first, second), "masks agree without the replay, so nothing was shown")
    return {"entries": one.numel()}


def half_on_host(place: Place) -> Seen:
    """Trained weights on the host only: no parameter that is trained tells of the device."""
    torch.manual_seed(0)
    trained = nn.Linear(16, 16)
    frozen = nn.Linear(16, 16).to(place.device).requires_grad_(False)
    seen: list[Tensor] = []

    def objective() -> Tensor:
        hidden = F.dropout(frozen(trained(torch.ones(32, 16)).to(place.device)).tanh(), 0.5)
        seen.append(hidden.detach() == 0)
        return hidden.square().mean()

    SAM(SGD(trained.parameters(), lr=0.1), rho=0.1).backward(objective)
    check(torch.equal(*seen), "the passes drew other masks")
    return {"entries": seen[0].numel()}


def goes_on(place: Place) -> Seen:
    """After a step the generator is where a single pass would have left it."""
    drawn(place, place.device, replay=True, steps=1)
    after = torch.rand(8, device=place.device)
    torch.manual_seed(0)
    F.dropout(torch.ones(4096, device=place.device), 0.5)
    check(torch.equal(after, torch.rand(8, device=place.device)), "numbers were drawn beside it")
    return {}
