"""The Trainer of transformers with a constraint: `ALMTrainer`, `SAMTrainer`, `SAULTrainer`.

Each is a Trainer, and a mixin for any other: `class Mine(SAULTrainer, YourTrainer): ...` keeps the
loss of `YourTrainer` as the retain loss. A training batch is `{"forget": batch, "retain": batch}`,
which `PairedDataset` and `PairedCollator` make of the rows of `torch_alm.language`.

Needs transformers and accelerate: `pip install torch-alm[hf]`.
"""

from torch_alm.integrations.transformers._alm import ALMTrainer
from torch_alm.integrations.transformers._pairs import PairedCollator, PairedDataset
from torch_alm.integrations.transformers._sam import SAMTrainer
from torch_alm.integrations.transformers._saul import SAULTrainer
from torch_alm.integrations.transformers._stop import StopOnMetric, StopOnStatus

__all__ = [
    "ALMTrainer",
    "PairedCollator",
    "PairedDataset",
    "SAMTrainer",
    "SAULTrainer",
    "StopOnMetric",
    "StopOnStatus",
]
