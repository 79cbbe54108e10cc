"""Losses and forgetting measures: pure functions, each with one orientation, stated first.

Faces take `(model, batch)`, a batch being the mapping transformers models take. Kernels take
`(logits, labels)` and are named after their face, `..._of_logits`. Labels are -100 where masked
and are shifted inside. Everything is computed in fp32 or wider.
"""

from torch_alm.measures._certificate import (
    certified_failure,
    certified_failure_of_logits,
    exact_match_failure,
    exact_match_failure_of_logits,
    largest_tau,
    margin_certificate,
    margin_certificate_of_logits,
    margin_surrogate,
    require_attainable,
    token_margins,
)
from torch_alm.measures._distribution import (
    flattening,
    flattening_of_logits,
    kl_divergence,
    kl_divergence_of_logits,
)
from torch_alm.measures._nll import (
    answer_nll,
    sequence_nll,
    sequence_nll_of_logits,
    token_nll,
    token_nll_of_logits,
)
from torch_alm.measures._preference import npo, npo_of_logits, simnpo, simnpo_of_logits
from torch_alm.measures._representation import (
    hidden_distance,
    hidden_states,
    rmu,
    rmu_retain,
    steering_vector,
)

__all__ = [
    "answer_nll", "certified_failure", "certified_failure_of_logits", "exact_match_failure",
    "exact_match_failure_of_logits", "flattening", "flattening_of_logits", "hidden_distance",
    "hidden_states", "kl_divergence", "kl_divergence_of_logits", "largest_tau",
    "margin_certificate", "margin_certificate_of_logits", "margin_surrogate", "npo",
    "npo_of_logits", "require_attainable", "rmu", "rmu_retain", "sequence_nll",
    "sequence_nll_of_logits", "simnpo", "simnpo_of_logits", "steering_vector", "token_margins",
    "token_nll", "token_nll_of_logits",
]  # fmt: skip
