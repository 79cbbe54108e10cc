"""The differences of docs/loops.md, applied to checkouts of the published loops and run.

`LOOPS` points to a folder with the checkouts, under the names below.
"""

import importlib.util
import math
import os
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    BatchEncoding,
    Trainer,
    TrainingArguments,
)

from tests.models import llama
from torch_alm import ALMConstraint

LOOPS = Path(os.environ.get("LOOPS", ""))
PAGE = Path(__file__).parents[2] / "docs" / "loops.md"
CHECKOUTS = {"locuslab/tofu": "tofu", "licong-lin/negative-preference-optimization": "npo"}
CHECKOUTS |= {"swj0419/muse_bench": "muse", "OPTML-Group/Unlearn-Smooth": "smooth"}
CHECKOUTS |= {"HaoranTang/sharp-unlearn": "sharp", "centerforaisafety/wmdp": "wmdp"}

here = pytest.mark.skipif(
    not os.environ.get("LOOPS"), reason="LOOPS does not point to checkouts of the published loops"
)
theirs = pytest.mark.skipif(
    transformers.__version__ >= "4.46", reason="their compute_loss is of transformers before 4.46"
)


def diff(repository: str) -> str:
    section = PAGE.read_text().split(f"({repository})")[1]
    return re.findall(r"```diff\n(.*?)```", section, re.DOTALL)[0]


def recipe(repository: str) -> dict[str, list[tuple[str, str]]]:
    """Each file, with its hunks as what stands there and what takes its place."""
    files: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^--- ", diff(repository), flags=re.MULTILINE)[1:]:
        path, *hunks = part.split("\n@@\n")
        files[path] = []
        for hunk in hunks:
            lines = hunk.rstrip("\n").split("\n")
            sides = ([line[1:] for line in lines if line[:1] != mark] for mark in "+-")
            before, after = ("\n".join(side) + "\n" for side in sides)
            files[path].append((before, after))
    return files


def patched(repository: str, place: int = 0) -> str:
    """The text of a file, the first one if nothing else is said, with the difference in it."""
    path, pairs = list(recipe(repository).items())[place]
    text = (LOOPS / CHECKOUTS[repository] / path).read_text()
    for before, after in pairs:
        assert before in text, f"{path} of {repository} has changed: {before}"
        text = text.replace(before, after)
    text = text.replace('"alpha": 0.01,', '"alpha": 0.15,')
    numbers = r"\balpha=[24]\.0, mu=0\.01, rules=\[Leak\(0\.5\)\]"
    return re.sub(numbers, "alpha=3.0, mu=0.5", text)


@pytest.mark.parametrize("repository", CHECKOUTS)
def test_a_recipe_has_at_most_twelve_lines(repository: str) -> None:
    assert 0 < sum(line[:1] == "+" for line in diff(repository).splitlines()) <= 12


def test_a_checkpoint_that_methods_share_has_a_multiplier_where_there_is_one() -> None:
    """Without a checkout: the function that all of its methods save with."""
    ((_, after),) = recipe("HaoranTang/sharp-unlearn")["unlearn/impl.py"]
    scope: dict[str, Any] = {}
    exec(f"def save(model, evaluation_result, args):\n{after}    return state", scope)
    model, constraint = nn.Linear(2, 2), ALMConstraint(None, 1.0, 1.0)
    other = scope["save"](model, None, SimpleNamespace())
    mine = scope["save"](model, None, SimpleNamespace(constraint=constraint))
    assert other.keys() == {"state_dict", "evaluation_result"}
    assert mine["constraint"] == constraint.state_dict()


def test_a_threshold_for_classes_is_one_that_a_guess_has_not_passed() -> None:
    (alpha,) = re.findall(r"alpha=([\d.]+)", diff("HaoranTang/sharp-unlearn"))
    assert 0 < float(alpha) < math.log(10)


class Anything(ModuleType):
    """In place of what their module imports and this run does not reach."""

    __path__: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: args[0] if args else None


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a patched file as a module of a package, beside stand-ins for its neighbours."""

    def load(repository: str, *absent: str, place: int = 0) -> ModuleType:
        for name in ("published", *absent):
            monkeypatch.setitem(sys.modules, name, Anything(name))
        file = tmp_path / "loop.py"
        file.write_text(patched(repository, place))
        spec = importlib.util.spec_from_file_location("published.loop", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def trained(kind: Any, folder: Path, collate: Any, **given: Any) -> Any:
    ids = [torch.tensor([[1, n, 3, n]]) for n in (4, 5)]
    args = TrainingArguments(
        str(folder),
        learning_rate=1e-2,
        max_steps=60,
        gradient_accumulation_steps=given.pop("parts", 2),
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=60,
        logging_steps=1,
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
    )
    pairs, model = [ids] * 4, llama()
    trainer = kind(model, args, train_dataset=pairs, data_collator=collate, **given)
    trainer.train()
    lines = [x for x in trainer.state.log_history if "constraint/gate" in x]
    assert len(lines) == trainer.constraint.metrics()["steps"] == 60
    assert {line["constraint/gate"] for line in lines} == {0.0, 1.0}, "opens, and closes"
    assert lines[0]["constraint/value"] < 3.0 <= max(x["constraint/value"] for x in lines)
    saved = (folder / "checkpoint-60" / "trainer_state.json").read_text()
    assert "torch_alm.constraint" in saved
    return trainer


def tuples(pairs: Any) -> Any:
    return tuple((ids, ids, torch.ones_like(ids)) for ids in pairs[0])


def mappings(pairs: Any) -> Any:
    return tuple({"input_ids": ids} for ids in pairs[0])


@here
@theirs
def test_tofu(loaded: Any, tmp_path: Path) -> None:
    absent = ("deepspeed", "evaluate_util", "data_module", "utils")
    module = loaded("locuslab/tofu", *absent)
    given = {"forget_loss": "grad_diff", "oracle_model": None, "eval_cfg": None}
    trained(module.CustomTrainerForgetting, tmp_path, tuples, **given)


@here
@theirs
def test_npo(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("deepspeed", "evaluate_util", "data_module", "utils")
    module = loaded("licong-lin/negative-preference-optimization", *absent)
    kind = module.CustomTrainerForgetting
    monkeypatch.setattr(kind, "e_prepare_deepspeed", lambda self, model: model)
    monkeypatch.setattr(module, "get_batch_loss", by_sequence)
    monkeypatch.setattr(kind, "get_train_dataloader", Trainer.get_train_dataloader)
    given = {"forget_loss": "npo_grad_diff", "oracle_model": llama(), "eval_cfg": None, "seed": 0}
    given |= {"npo_coeff": 1.0, "grad_diff_coeff": 1.0, "KL_coeff": 1.0}
    trained(kind, tmp_path, tuples, **given, ref_policy="fine_tuned", beta=0.1)


def by_sequence(logits: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(
        logits[:, :-1].transpose(-1, -2), labels[:, 1:], reduction="none"
    )
    return loss.sum(-1)


@here
@theirs
def test_muse(loaded: Any, tmp_path: Path) -> None:
    module = loaded("swj0419/muse_bench", "published.utils", "published.dataset")
    trained(module.IterativeUnlearner, tmp_path, mappings, loss_type="ga_gdr")


@here
@theirs
def test_sam_npo(loaded: Any, tmp_path: Path) -> None:
    """Theirs overwrites the gradient of the micro-batch before: one per step."""
    absent = ("published.utils", "published.dataset")
    module = loaded("OPTML-Group/Unlearn-Smooth", *absent)
    trained(module.SAMIterativeUnlearner, tmp_path, mappings, loss_type="ga_gdr", parts=1)


@here
def test_sharp_min_max(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("wandb", "utils", "published.impl", "sam", "imagenet")
    for owner in (Tensor, nn.Module):
        monkeypatch.setattr(owner, "cuda", lambda self, *_: self)
    module = loaded("HaoranTang/sharp-unlearn", *absent)
    spec = importlib.util.spec_from_file_location("their_sam", LOOPS / "sharp" / "sam" / "sam.py")
    assert spec is not None and spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    rows = [(torch.randn(6, 3), torch.arange(6) % 4) for _ in range(2)]
    sides = [source.SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.05) for _ in range(2)]
    args = SimpleNamespace(separate=True, imagenet_arch=False, sam="minmax", warmup=0, alpha=0.5)
    args.print_freq = 100
    mask = {name: torch.full_like(p, 0.5) for name, p in model.named_parameters()}
    meter = SimpleNamespace(update=lambda *_: None, val=0.0, avg=0.0)
    module.utils.AverageMeter = lambda: meter
    module.utils.accuracy = lambda *_: [torch.zeros(())]
    loaders = {"forget": [rows[0]] * 5, "retain": [rows[1]] * 5}
    weights = []
    for epoch in range(20):
        module.negative_grad(loaders, model, nn.CrossEntropyLoss(), sides, epoch, args, mask)
        weights.append(args.constraint.weight)
    assert args.constraint.metrics()["steps"] == 100
    assert 0.0 in weights and max(weights) > 0, "the gate opens and closes"
    absent = (*absent, "pruner", "matplotlib", "matplotlib.pyplot")
    saving = loaded("HaoranTang/sharp-unlearn", *absent, place=1)
    saved: list[Any] = []
    monkeypatch.setattr(
        saving.utils, "save_checkpoint", lambda state, *_, **__: saved.append(state)
    )
    vars(args).update(unlearn="seq_mix", sequential=False, uname="", shuffle=False, save_dir="")
    asked = "dataset arch class_to_replace num_indexes_to_replace group_index mem mem_proxy seed"
    vars(args).update(dict.fromkeys([*asked.split(), "unlearn_step"], 0))
    saving.save_unlearn_checkpoint(model, None, args)
    assert saved[0]["constraint"] == args.constraint.state_dict()
    del args.constraint
    vars(args).update(mask="_orig_", num_to_forget=0)
    for method in ("FT", "FT_prune", "GA", "RL", "wfisher", "scrub", "seq_mix"):
        for args.unlearn, args.sequential in ((method, False), (method, True)):
            saving.save_unlearn_checkpoint(model, None, args)
            assert saved[-1].keys() == {"state_dict", "evaluation_result"}, method


class Words:
    """All that RMU asks of a tokenizer."""

    truncation_side = "left"

    def __call__(self, texts: list[str], **_: Any) -> BatchEncoding:
        return BatchEncoding(
            {"input_ids": torch.tensor([[int(w) for w in t.split()] for t in texts])}
        )

    def save_pretrained(self, path: str) -> None:
        pass


class Seen(ALMConstraint):
    """A constraint that keeps what has acted."""

    def step(self) -> Any:
        weight = super().step()
        WEIGHTS.append(weight)
        return weight


WEIGHTS: list[float] = []


@here
@theirs
def test_rmu(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (LOOPS / "wmdp").is_dir():
        pytest.skip("LOOPS has no checkout of centerforaisafety/wmdp")
    monkeypatch.syspath_prepend(LOOPS / "wmdp")
    module = loaded("centerforaisafety/wmdp")
    monkeypatch.setattr(module, "ALMConstraint", Seen)
    args = SimpleNamespace(layer_ids=[0], param_ids=[4, 5, 6], layer_id=0, lr=1e-2, verbose=False)
    args.module_str, args.output_dir = "{model_name}.model.layers[{layer_id}]", str(tmp_path)
    args.alpha, args.steering_coeff_list, args.max_num_batches = [1.0], [2.0], 100
    forget, retain = ([[text] * 2] * 100 for text in ("1 4 3 4", "1 5 2 5"))
    WEIGHTS.clear()
    module.run_rmu(llama(), llama(), Words(), [forget], [retain], args)
    saved = torch.load(tmp_path / "constraint.pt", weights_only=True)
    assert len(WEIGHTS) == 100 and saved["multiplier"] == WEIGHTS[-1]
    assert WEIGHTS[0] > 1 and 0.0 in WEIGHTS, "opens, and closes"
