"""OpenUnlearning itself, where `OPEN_UNLEARNING` points to a checkout and the TOFU files exist.

A copy of the checkout has, under the names that its configurations give them, some rows of TOFU
and a Llama of one layer: so the commands of the pages run as they stand there.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    names = dict.fromkeys(["<pad>", "<unk>", *SPECIAL, "system", "user", "assistant", *words])
    write_model(copy, {name: i for i, name in enumerate(names)})
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


def write_model(folder: Path, vocabulary: dict[str, int]) -> None:
    """A tokenizer of words with a chat template, and a Llama with one layer."""
    bare = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<|eot_id|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, **named)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / TOKENIZER)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=vocabulary["<|eot_id|>"],
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder / MODEL)


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


def blocks(page: str, heading: str) -> list[list[str]]:
    """Words of the commands below a heading, and of what is added to a command."""
    section = (ROOT / "docs" / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        shlex.split(one.replace("\\\n", ""))
        for one in re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    ]


LAUNCH = ["python", "-m", "torch_alm.integrations.openunlearning", "CHECKOUT"]
TO_SEE = (  # as long as it takes to see, and nothing sent anywhere
    "trainer.args.num_train_epochs=3",
    "trainer.args.logging_steps=1",
    "trainer.args.report_to=none",
    "+trainer.args.use_cpu=true",
)


def the_page() -> tuple[list[list[str]], list[str], list[str]]:
    """The commands, what resumes one of them, and what a machine without a GPU adds."""
    found = blocks("engines.md", "OpenUnlearning")
    found += blocks("loops.md", "OpenUnlearning's own methods")
    found = [[word.replace("alpha=4.0", "alpha=9.0") for word in one] for one in found]  # not met
    commands = [one[len(LAUNCH) :] for one in found if one[: len(LAUNCH)] == LAUNCH]
    resume, cpu = (one for one in found if one[: len(LAUNCH)] != LAUNCH)
    return commands, resume, cpu


def weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return LlamaForCausalLM.from_pretrained(state["folder"]).state_dict()


@pytest.mark.skipif(FIVE, reason="a chat template's ids are no list in transformers 5, nor theirs")
def test_the_commands_of_the_pages_run_with_their_evaluations_and_one_resumes(copy: Path) -> None:
    commands, resume, cpu = the_page()
    assert {"trainer=SAUL", "trainer=NPO"} <= {word for command in commands for word in command}
    for command in commands:
        state = launched(copy, *command, *cpu, *TO_SEE)
        assert all("constraint/multiplier" in line for line in controlled(state))
        assert len(controlled(state)) == state["global_step"] > 1
        told = [line for line in state["log_history"] if "extraction_strength" in line]
        assert len(told) >= 4, "at the start and after each epoch"
        summary = next(state["folder"].rglob("TOFU_SUMMARY.json"))
        assert {"model_utility", "privleak"} <= json.loads(summary.read_text()).keys()
        if not any("save_only_model=false" in word for word in command):
            continue
        steps, through = [line["constraint/multiplier"] for line in controlled(state)], state
        assert steps[3] > 0 and len(steps) == 6
        expected = weights(state)
        for step in (2, 6):  # as if it had ended in the third epoch
            shutil.rmtree(state["folder"] / f"checkpoint-{step}")
        resumed = launched(copy, *command, *resume, *cpu, *TO_SEE)
        assert not (state["folder"] / "checkpoint-2").exists(), "the first epoch is not run again"
        assert (state["folder"] / "checkpoint-6").exists()
        assert controlled(resumed) == controlled(through)
        assert all(torch.equal(p, expected[name]) for name, p in weights(resumed).items())


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


def test_their_method_with_a_weight_that_stays_is_their_method(copy: Path) -> None:
    still = tuple(
        f"+trainer.method_args.constraint.{each}" for each in ("alpha=9", "mu=0", "multiplier=0.5")
    )
    both = [
        weights(launched(copy, *SMALL, "trainer=GradDiff", *overrides))
        for overrides in (still, ("trainer.method_args.gamma=0.5",))
    ]
    assert all(torch.equal(both[1][name], p) for name, p in both[0].items())
