"""Losses and forgetting measures: pure functions, each with one orientation, stated first.

Faces take `(model, batch)`, a batch being the mapping transformers models take, and tell packed
answers apart. Kernels take `(logits, labels)`, one answer a row, and are named after their face,
`..._of_logits`. Labels are -100 where masked and are shifted inside. Everything is computed in fp32
or wider.
"""

from torch_alm.measures._certificate import (
    certified_failure,
    certified_failure_of_logits,
    exact_match_failure,
    exact_match_failure_of_logits,
    largest_tau,
    require_attainable,
)
from torch_alm.measures._distribution import flattening, flattening_of_logits, kl_divergence
from torch_alm.measures._nll import answer_nll, sequence_nll, token_nll, token_nll_of_logits
from torch_alm.measures._preference import npo, npo_of_logits, simnpo, simnpo_of_logits
from torch_alm.measures._representation import (
    rmu,
    rmu_retain,
    steering_vector,
)

__all__ = [
    "answer_nll", "certified_failure", "certified_failure_of_logits", "exact_match_failure",
    "exact_match_failure_of_logits", "flattening", "flattening_of_logits",
    "kl_divergence", "largest_tau", "npo", "npo_of_logits", "require_attainable",
    "rmu", "rmu_retain", "sequence_nll", "simnpo", "simnpo_of_logits", "steering_vector",
    "token_nll", "token_nll_of_logits",
]  # fmt: skip
