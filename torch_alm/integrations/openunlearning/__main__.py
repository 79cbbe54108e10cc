"""Run a checkout's training script with our trainers registered."""

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

from torch_alm.integrations.openunlearning._controlled import constrain
from torch_alm.integrations.openunlearning._trainers import make_trainers

CONFIGS = Path(__file__).with_name("configs")


def main(arguments: list[str]) -> None:
    """Run `CHECKOUT/src/train.py` as `__main__`, in the checkout, with these overrides."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit("usage: python -m torch_alm.integrations.openunlearning CHECKOUT [overrides]")
    checkout, *overrides = arguments
    script = _script(checkout)
    os.chdir(script.parent.parent)
    sys.path.insert(0, str(script.parent))
    package = import_module("trainer")
    base = import_module("trainer.unlearn.base").UnlearnTrainer
    theirs = [kind for kind in package.TRAINER_REGISTRY.values() if issubclass(kind, base)]
    for kind in [*make_trainers(base), *map(constrain, theirs)]:
        package._register_trainer(kind)
    sys.argv = [str(script), *complete_overrides(overrides)]
    # Importing the script and calling its `main` does not do: Hydra would look for the
    # configuration relative to a module.
    runpy.run_path(str(script), run_name="__main__")


def complete_overrides(overrides: list[str]) -> list[str]:
    """Add our configurations, our trainer and the unlearning mode to the overrides."""
    ours = [f"--config-dir={CONFIGS}"]
    if not any(o.startswith(("--config-name", "-cn")) for o in overrides):
        ours.insert(0, "--config-name=unlearn.yaml")
    if not any(o.startswith("trainer=") for o in overrides):
        ours.append("trainer=SAUL")
    return [*ours, *overrides]


def _script(checkout: str) -> Path:
    script = Path(checkout).expanduser().resolve() / "src" / "train.py"
    if not script.is_file():
        sys.exit(f"{checkout} has no src/train.py. Is it a checkout of OpenUnlearning?")
    return script


if __name__ == "__main__":
    main(sys.argv[1:])
