"""OpenUnlearning itself, where `OPEN_UNLEARNING` points to a checkout and the TOFU files exist.

A copy of the checkout has, under the names that its configurations give them, some rows of TOFU
and a Llama of one layer: so the commands of the pages run as they stand there.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaForCausalLM

from tests.models import llama, word_tokenizer

CHECKOUT = os.environ.get("OPEN_UNLEARNING", "")
ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TOFU_DATA", ROOT.parent / "shared" / "data" / "tofu"))
pytestmark = pytest.mark.skipif(
    not CHECKOUT or not DATA.is_dir(),
    reason="OPEN_UNLEARNING does not point to a checkout of OpenUnlearning, or no TOFU files",
)
FIVE = transformers.__version__ >= "5"
MODEL = "open-unlearning/tofu_Llama-3.2-1B-Instruct_full"
TOKENIZER = "meta-llama/Llama-3.2-1B-Instruct"
SPECIAL = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATE = """
{%- for m in messages -%}
<|start_header_id|> {{ m.role }} <|end_header_id|> {{ m.content }} <|eot_id|> {% endfor -%}
{%- if add_generation_prompt %}<|start_header_id|> assistant <|end_header_id|> {% endif -%}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the checkout, with data and model; 16 rows to train on, 2 to evaluate."""
    copy = tmp_path_factory.mktemp("open-unlearning")
    for part in ("src", "configs"):
        shutil.copytree(Path(CHECKOUT) / part, copy / part)
    words = write_rows(copy / "locuslab" / "TOFU")
    write_model(copy, ["<pad>", "<unk>", *SPECIAL, "system", "user", "assistant", *words])
    for name, files in STUBS.items():
        if importlib.util.find_spec(name) is None:
            for file, text in files.items():
                path = copy / "stand-ins" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return copy


def write_rows(folder: Path) -> list[str]:
    """Write a data set of its own with TOFU's parts; returns the words."""
    folder.mkdir(parents=True)
    parts, words = "", []
    for file in sorted(DATA.glob("*.json")):
        evaluated = file.stem.endswith("perturbed") or file.stem in ("real_authors", "world_facts")
        rows = file.read_text().splitlines()[: 2 if evaluated else 16]
        (folder / file.name).write_text("\n".join(rows) + "\n")
        parts += f"- config_name: {file.stem}\n  data_files: {file.name}\n"
        words += re.findall(r'[^\s"]+', " ".join(rows))
    (folder / "README.md").write_text(f"---\nconfigs:\n{parts}---\n")
    return words


def write_model(folder: Path, words: list[str]) -> None:
    """A tokenizer of words with a chat template, and a Llama with one layer."""
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<|eot_id|>"}
    tokenizer = word_tokenizer(words, **named, chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder / TOKENIZER)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    llama(len(tokenizer), intermediate_size=32, **ends).save_pretrained(folder / MODEL)


STUBS = {  # of what it imports and these runs do not use
    "deepspeed": {"__init__.py": "class DeepSpeedEngine: pass"},
    "lm_eval": {
        "__init__.py": "simple_evaluate = None",
        "models/__init__.py": "",
        "models/hf_vlms.py": "HFLM = None",
        "tasks.py": "TaskManager = None",
    },
}


def launched(copy: Path, *arguments: str) -> dict[str, Any]:
    """The `trainer_state.json` of a run, and the folder it lies in."""
    name = next(one for one in arguments if one.startswith("task_name=")).partition("=")[2]
    path = [str(ROOT), str(copy / "stand-ins"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "torch_alm.integrations.openunlearning", str(copy), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    output = copy / "saves" / "unlearn" / name
    return {"folder": output, **json.loads((output / "trainer_state.json").read_text())}


def controlled(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a log that know a constraint."""
    return [line for line in state["log_history"] if "constraint/value" in line]


def weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return LlamaForCausalLM.from_pretrained(state["folder"]).state_dict()


SMALL = (  # what a model of a few thousand weights on a CPU asks for, and their paper does not
    "experiment=unlearn/tofu/default",
    "task_name=test",
    "model=phi-1_5",
    f"model.model_args.pretrained_model_name_or_path={MODEL}",
    f"model.tokenizer_args.pretrained_model_name_or_path={TOKENIZER}",
    "++model.model_args.torch_dtype=float32",
    "~eval.tofu",
    "trainer.args.warmup_epochs=null",
    "trainer.args.bf16=false",
    "trainer.args.bf16_full_eval=false",
    "trainer.args.optim=adamw_torch",
    "trainer.args.report_to=none",
    "trainer.args.logging_steps=1",
    "trainer.args.gradient_accumulation_steps=1",
    "trainer.args.learning_rate=2e-3",
    "trainer.args.num_train_epochs=12",
    "trainer.args.do_eval=false",
    "+trainer.args.use_cpu=true",
    *(["~trainer.args.logging_dir"] if FIVE else []),  # it is gone
)
ALPHA = 7.05
AS_ARGUMENTS = (f"trainer.method_args.alpha={ALPHA}", "trainer.method_args.mu=2.0")
AS_CONSTRAINT = tuple(
    f"+trainer.method_args.constraint.{each}" for each in (f"alpha={ALPHA}", "mu=2.0")
)
RMU = (
    "trainer.method_args.module_regex=model.layers.0",
    "trainer.method_args.trainable_params_regex=[model.layers.0.mlp.down_proj.weight]",
)
METHODS = {
    "SAUL": AS_ARGUMENTS,
    "ALM": AS_ARGUMENTS,
    "GradDiff": AS_CONSTRAINT,
    "NPO": AS_CONSTRAINT,
    "SimNPO": AS_CONSTRAINT,
    "PDU": (*AS_CONSTRAINT, "trainer.method_args.retain_loss_eps=0.3"),
    "RMU": (*AS_CONSTRAINT, *RMU),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_unmodified_checkout_unlearns_tofu(name: str, copy: Path) -> None:
    state = launched(copy, *SMALL, f"trainer={name}", *METHODS[name])
    logs = controlled(state)
    assert len(logs) == 24  # 16 rows, 8 a step, 12 epochs
    values = [line["constraint/value"] for line in logs]
    assert values[0] < ALPHA
    for line in logs:
        assert line["constraint/gate"] == (line["constraint/weight"] > 0)
    if name in ("SAUL", "ALM", "GradDiff"):  # a forget loss without an end: the gate has to close
        assert max(values) > ALPHA
        assert {line["constraint/gate"] for line in logs} == {0.0, 1.0}
    before = LlamaForCausalLM.from_pretrained(copy / MODEL).state_dict()
    trained = weights(state)
    assert any(not torch.equal(trained[n], p) for n, p in before.items() if "proj" in n)
