"""The Trainer of transformers with a constraint: three Trainers, and callbacks for any other.

`ALMTrainer`, `SAMTrainer` and `SAULTrainer` are Trainers, and mixins for any other: `class
Mine(SAULTrainer, YourTrainer): ...` keeps the loss of `YourTrainer` as the retain loss. A training
batch is `{"forget": batch, "retain": batch}`, which `PairedDataset` and `PairedCollator` make of
the rows of `torch_alm.language`. A Trainer with both losses in one `compute_loss` keeps it and
takes a `ConstraintCallback`.

Needs transformers and accelerate: the extra `torch-alm[hf]`.
"""

from torch_alm.integrations.transformers._alm import ALMTrainer
from torch_alm.integrations.transformers._callback import ConstraintCallback
from torch_alm.integrations.transformers._pairs import PairedCollator, PairedDataset
from torch_alm.integrations.transformers._sam import SAMTrainer
from torch_alm.integrations.transformers._saul import SAULTrainer
from torch_alm.integrations.transformers._stop import AskingCallback, StopOnStatus

__all__ = [
    "ALMTrainer",
    "AskingCallback",
    "ConstraintCallback",
    "PairedCollator",
    "PairedDataset",
    "SAMTrainer",
    "SAULTrainer",
    "StopOnStatus",
]
