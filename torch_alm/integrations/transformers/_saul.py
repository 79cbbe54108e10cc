"""SAULTrainer: Algorithm 1 inside a Trainer."""

from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import save_fsdp_model  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_alm.checkpoint import DualState
from torch_alm.constraint import ALMConstraint
from torch_alm.dual import DualOptimizer
from torch_alm.integrations.transformers._objectives import ObjectiveTrainer
from torch_alm.integrations.transformers._paired import PairedTrainer, require_pair
from torch_alm.sam import SAM, ReverseSAM

OPTIMIZER, SCHEDULE = "optimizer.pt", "scheduler.pt"
SHARDS = "optimizer_0"  # where accelerate keeps an optimizer under FSDP


class SAULTrainer(ObjectiveTrainer, PairedTrainer):
    """Sharpness-aware augmented-Lagrangian unlearning in a Trainer.

    Both sides get the optimizer that the Trainer would have made of its arguments (`optim`, ...),
    in `SAM` and `ReverseSAM` where a radius is given, joined by a `DualOptimizer`.
    The schedule scales both learning rates. `max_grad_norm` clips each side on its own; logs have
    `grad_norm` (retain) and `forget_grad_norm`. Where lambda+ will be 0, a step's last forget
    backward pass is skipped. `optimizer.pt` holds both sides and the constraint.

    Override `forget_objective` to descend one quantity and measure another: it may return a pair
    `(loss, value)`. Logs, evaluations and the best checkpoint are as in `ALMTrainer`.

    Args:
        *args: those of the Trainer behind it.
        constraint: over the forget side; its `measure` is called with `(model, batch)` and is the
            forget objective. `ReverseSAM` looks where it is hardest to meet, `SAM` for `"<="`.
        rho: radius of the retain side's ball, in the units of the weights: see `radius_for`.
        forget_rho: that of the forget side; `rho` if `None`.
        scale: see `DualOptimizer`.
        forget_learning_rate: of the forget side; that of the arguments if `None`.
        forget_weight_decay: of the forget side, for the parameters that the Trainer lets decay. Two
            sides that decay would decay twice.
        probe_every: measure a released constraint in every k-th step only; see `DualOptimizer`.
        sam: further arguments of both `SAM` and `ReverseSAM`.
        **kwargs: those of the Trainer behind it. `optimizers=(DualOptimizer(...), None)` takes the
            place of everything above but `constraint`, which has to be the same.

    Raises:
        ValueError: under DeepSpeed or FSDP1, with `fp16=True`; for an optimizer that steps inside
            `backward`, a training batch that is no pair, a checkpoint without the optimizer.
        TypeError: for an optimizer of your own that is no `DualOptimizer`.

    Cost per step: 2 forward and 2 backward passes, 1 backward one while the gate is closed; with a
    radius for both 4, 4 and 3, and a copy of the parameters. Two gradients, two states.

    Source: SAUL, Algorithm 1.
    """

    def __init__(
        self,
        *args: Any,
        constraint: ALMConstraint,
        rho: float = 0.0,
        forget_rho: float | None = None,
        scale: Literal["gradient", "step"] = "gradient",
        forget_learning_rate: float | None = None,
        forget_weight_decay: float = 0.0,
        probe_every: int = 1,
        sam: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.rho, self.forget_rho = rho, rho if forget_rho is None else forget_rho
        self.forget_learning_rate = forget_learning_rate
        self.forget_weight_decay = forget_weight_decay
        self._dual_settings: dict[str, Any] = {"scale": scale, "probe_every": probe_every}
        self._sam = dict(sam or {})
        self._forget_norm: Tensor | None = None
        super().__init__(*args, constraint=constraint, **kwargs)
        for other in type(self).__mro__[: type(self).__mro__.index(SAULTrainer)]:
            if "compute_loss" in vars(other):
                self._warn_bypassed(other, "compute_loss", "`retain_objective`")

    def create_accelerator_and_postprocess(self) -> None:
        """Prepare as the Trainer does; clipping then reaches both sides."""
        super().create_accelerator_and_postprocess()
        if self.args.fp16:
            raise ValueError(
                f"{type(self).__name__}: `fp16=True` brings a GradScaler, which unscales the "
                "retain gradient only. Did you mean `bf16=True`, which needs none?"
            )
        self.accelerator.clip_grad_norm_ = self._clip
        if self.is_fsdp_enabled:
            self._shard, self.accelerator.prepare = self.accelerator.prepare, self._prepare

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Make two of the optimizers that the Trainer behind it would make, and join them."""
        if self.optimizer is None:
            self.optimizer = self._join(*args, **kwargs)
        given = self._optimizer
        if not isinstance(given, DualOptimizer) or given.constraint is not self.constraint:
            raise TypeError(
                f"{type(self).__name__} found an optimizer of type {type(given).__name__}, no "
                "DualOptimizer with this trainer's constraint: nothing would be forgotten. Did you "
                "mean `optimizers=(DualOptimizer(retain, forget, constraint), None)`, or none?"
            )
        given.backward_fn = self._backward
        given.reshard = self._reshard if self.is_fsdp_enabled else None
        return self.optimizer

    def _prepare(self, *given: Any, **how: Any) -> Any:
        """Let accelerate shard; the forget side lists nothing meanwhile, which could not be freed.

        Both sides have the same groups, of which accelerate reaches the retain side's.
        """
        if self.optimizer is None or self.optimizer not in given:
            return self._shard(*given, **how)
        dual = self._optimizer
        dual._listed = ()
        for group in dual.forget.param_groups:
            group["params"] = []
        prepared = self._shard(*given, **how)
        for forget, retain in zip(dual.forget.param_groups, dual.retain.param_groups, strict=True):
            forget["params"] = [*retain["params"]]
        return prepared

    def _reshard(self) -> None:
        """Drop gathered weights, which a backward pass would have dropped."""
        for module in cast(nn.Module, self.model_wrapped).modules():
            getattr(module, "reshard", lambda: None)()

    def _join(self, *args: Any, **kwargs: Any) -> DualOptimizer:
        retain, forget = (self._base(*args, **kwargs) for _ in range(2))
        model = cast(nn.Module, self.model)
        names = {*self.get_decay_parameter_names(model)}
        decaying = {id(p) for name, p in model.named_parameters() if name in names}
        for group in forget.param_groups:
            is_exempt = not any(id(p) in decaying for p in group["params"])
            group["weight_decay"] = 0.0 if is_exempt else self.forget_weight_decay
            if self.forget_learning_rate is not None:
                group["lr"] = self.forget_learning_rate
        around = SAM if self.constraint.sense == "<=" else ReverseSAM
        return DualOptimizer(
            SAM(retain, self.rho, **self._sam) if self.rho else retain,
            around(forget, self.forget_rho, **self._sam) if self.forget_rho else forget,
            self.constraint,
            **self._dual_settings,
        )

    def _base(self, *args: Any, **kwargs: Any) -> Optimizer:
        self.optimizer = None
        return super().create_optimizer(*args, **kwargs)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Take both gradients of a micro-batch; return its share in the step's retain loss."""
        inputs = self._prepare_pass(model, inputs)
        require_pair(self, inputs)
        losses = self._optimizer.backward(
            retain=lambda: self._call_in_context(self.retain_objective, model, inputs["retain"]),
            forget=lambda: self._call_in_context(self.forget_objective, model, inputs["forget"]),
            weight=1.0 / self._parts,
            last=self.accelerator.sync_gradients,
        )
        self._retain_losses.append(losses.retain)
        return losses.retain / self._parts

    def _clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clip each side on its own; return the retain side's norm, which the Trainer logs."""
        norms = self._optimizer.clip_grad_norm_(max_norm)
        self._forget_norm = norms.forget
        return norms.retain

    def _control_logs(self) -> dict[str, float]:
        norm = {} if self._forget_norm is None else {"forget_grad_norm": self._forget_norm.item()}
        return {**norm, **super()._control_logs()}

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save as the Trainer does; under FSDP2, which knows one side only, by `DualState`."""
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        plugin, schedule = self.accelerator.state.fsdp_plugin, cast(Any, self.lr_scheduler)
        save_fsdp_model(plugin, self.accelerator, self.model, output_dir, adapter_only=True)
        dcp.save(self._shards, checkpoint_id=Path(output_dir, SHARDS))
        if self.args.should_save:
            torch.save(schedule.state_dict(), Path(output_dir, SCHEDULE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load what `_save_optimizer_and_scheduler` has saved, on any number of ranks."""
        parts = [SHARDS if self.is_fsdp_enabled else OPTIMIZER, SCHEDULE]
        if checkpoint is not None and not all(Path(checkpoint, part).exists() for part in parts):
            raise ValueError(
                f"{type(self).__name__}: the checkpoint {checkpoint} lacks one of {parts}, where "
                "the constraint is. Was it saved with `save_only_model=True`?"
            )
        if not self.is_fsdp_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
        elif checkpoint is not None:
            dcp.load(self._shards, checkpoint_id=Path(checkpoint, SHARDS))
            schedule = torch.load(Path(checkpoint, SCHEDULE), weights_only=True)
            cast(Any, self.lr_scheduler).load_state_dict(schedule)

    @property
    def _shards(self) -> dict[str, Any]:
        return {"optimizer": DualState(cast(nn.Module, self.model), self._optimizer)}
