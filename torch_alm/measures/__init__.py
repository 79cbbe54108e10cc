"""Losses and forgetting measures: pure functions, each with one orientation, stated first.

They take `(model, batch)`, a batch being the mapping that transformers models take, and separate
packed answers. If the logits are known already, pass `lambda: logits` as the model and
`{"labels": labels}` as the batch. Labels are -100 where masked and are shifted inside.
Everything is computed in fp32 or wider.
"""

from torch_alm.measures._certificate import (
    certified_failure,
    exact_match_failure,
    largest_tau,
    require_attainable,
)
from torch_alm.measures._distribution import flattening, kl_divergence
from torch_alm.measures._nll import log_odds, sequence_nll, token_nll
from torch_alm.measures._preference import npo, simnpo
from torch_alm.measures._representation import rmu, rmu_retain, steering_vector

__all__ = [
    "certified_failure", "exact_match_failure", "flattening", "kl_divergence", "largest_tau",
    "log_odds", "npo", "require_attainable", "rmu", "rmu_retain", "sequence_nll", "simnpo",
    "steering_vector", "token_nll",
]  # fmt: skip
