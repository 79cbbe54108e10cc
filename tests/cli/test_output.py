"""A run may replace what another wrote, but neither the model nor what others put there."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import FINISHED, Command, report
from tests.cli.test_unlearn import StopAfter
from torch_alm.cli.methods import METHODS
from torch_alm.cli.output import MANIFEST, Output, digest
from torch_alm.unlearning.files import BLOCK
from torch_alm.unlearning.refusal import Refusal

ONE = ("--method", "dual", "--epochs", 1)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refused(command: Command, capsys: Any, *words: object, **paths: Any) -> str:
    capsys.readouterr()
    assert command("unlearn", *ONE, *words, **paths) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_run_lists_what_it_wrote_and_replaces_that_alone(
    command: Command, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    assert command("unlearn", *ONE) in FINISHED
    listed = set(json.loads((out / MANIFEST).read_text())["files"])
    kept = {"unfinished/run.json", "unfinished/state.pt"}
    assert listed == set(contents(out)) - {MANIFEST} - kept
    assert {"report.html", "report.json", "model/config.json"} < listed
    (out / "notes.txt").write_text("mine")
    assert command("unlearn", "--force", *ONE, "--seed", 1) in FINISHED
    assert report(out)["settings"]["seed"] == 1
    assert (out / "notes.txt").read_text() == "mine"
    assert "notes.txt" not in json.loads((out / MANIFEST).read_text())["files"]
    assert command("evaluate", "--force") == 0
    assert set(json.loads((out / MANIFEST).read_text())["files"]) == listed, (
        "the model is still one"
    )


@pytest.mark.parametrize("kind", ["added", "changed", "linked", "list", "below"])
def test_what_somebody_put_there_is_not_replaced(
    command: Command, tmp_path: Path, capsys: Any, kind: str
) -> None:
    out = tmp_path / "out"
    assert command("unlearn", *ONE) in FINISHED
    if kind == "added":
        (out / "model" / "thesis.txt").write_text("three years")
    elif kind == "below":
        (out / "model" / "old" / "older").mkdir(parents=True)
        (out / "model" / "old" / "older" / "thesis.txt").write_text("three years")
    elif kind == "changed":
        (out / "model" / "config.json").write_text("{}")
    elif kind == "list":
        (out / MANIFEST).write_text("[]")
    else:
        shutil.move(out / "model", tmp_path / "moved")
        (out / "model").symlink_to(tmp_path / "moved")
    before = contents(tmp_path)
    told = refused(command, capsys, "--force")
    name = {"added": "thesis.txt", "below": "thesis.txt", "changed": "config.json",
            "linked": "out/model", "list": MANIFEST}[kind]  # fmt: skip
    assert name in told
    assert told.endswith("Did you mean another --output?")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("verb", ["unlearn", "evaluate", "attack"])
@pytest.mark.parametrize("where", ["", "inside", "deep/inside", "link"])
def test_nothing_is_written_into_the_folder_of_a_model(
    command: Command, tmp_path: Path, capsys: Any, folder: Path, verb: str, where: str
) -> None:
    model = tmp_path / "M"
    shutil.copytree(folder, model)
    if where == "link":
        (tmp_path / "link").symlink_to(model)
    out = "link" if where == "link" else f"M/{where}"
    before = contents(model)
    for words in ((), ("--force",)):
        assert command(verb, *words, model=model, output=out) == 2
        assert "is the folder of the model" in " ".join(capsys.readouterr().err.split())
        assert contents(model) == before


def test_a_second_model_is_safe_too(
    command: Command, tmp_path: Path, capsys: Any, folder: Path
) -> None:
    for verb, option in (("evaluate", "--original"), ("attack", "--compare")):
        other = shutil.copytree(folder, tmp_path / verb)
        assert command(verb, "--force", option, other, output=verb) == 2
        assert "is the folder of the model" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("place", ["out/model", "out/model/original"])
def test_a_model_is_not_replaced_by_its_own_result(
    command: Command, tmp_path: Path, capsys: Any, folder: Path, place: str
) -> None:
    model = tmp_path / place
    shutil.copytree(folder, model)
    before = contents(model)
    assert "would replace by its result" in refused(command, capsys, "--force", model=model)
    assert contents(model) == before
    assert command("evaluate", "--force", model=model) == 0, "which replaces reports alone"


def test_an_unfinished_run_is_given_up_only_for_one_that_can_begin(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["dual"])
        assert command("unlearn", *ONE) == 130
    kept = tmp_path / "out" / "unfinished"
    before = contents(kept)
    assert "is no folder" in refused(command, capsys, "--force", model=tmp_path / "typo")
    assert contents(kept) == before
    (kept / "notes.txt").write_text("mine")
    assert "notes.txt was not written" in refused(command, capsys, "--force")
    (kept / "notes.txt").unlink()
    assert contents(kept) == before
    assert command("unlearn", "--force", *ONE, "--seed", 2) in FINISHED
    assert contents(kept) != before


def test_a_run_that_goes_on_replaces_nothing_of_others_either(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["dual"])
        assert command("unlearn", *ONE) == 130
    mine = tmp_path / "out" / "model" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("three years")
    assert "thesis.txt was not written by" in refused(command, capsys)
    assert mine.read_text() == "three years"


TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.mark.parametrize("kind", ["weights", "configuration", "template"])
def test_a_model_that_changed_is_another_run(
    command: Command, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
    kind: str,
) -> None:  # fmt: skip
    model = shutil.copytree(folder, tmp_path / "M")
    with monkeypatch.context() as patch:
        StopAfter(patch, 1, METHODS["dual"])
        assert command("unlearn", *ONE, model=model) == 130
    if kind == "weights":
        path = model / "model.safetensors"
        weights = load_file(path)
        weights["model.norm.weight"][-1] += 2**-20
        save_file(weights, path, metadata={"format": "pt"})
    else:
        name, key, value = {
            "configuration": ("config.json", "rms_norm_eps", 1e-5),
            "template": ("tokenizer_config.json", "chat_template", TEMPLATE),
        }[kind]
        config = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**config, key: value}))
    told = refused(command, capsys, model=model)
    changed = "tokenizer" if kind == "template" else "weights"
    assert f"a run of other settings: {changed} was '" in told
    shutil.copytree(folder, model, dirs_exist_ok=True)
    torch.manual_seed(5)
    assert command("unlearn", *ONE, model=model) in FINISHED
    assert "Going on after step 1 of 1" in capsys.readouterr().out
    assert len(report(tmp_path / "out")["settings"]["weights"]) == 16


@pytest.mark.parametrize("size", [1, BLOCK, BLOCK + 1, 9 * BLOCK + 7])
def test_a_digest_changes_with_the_size_and_with_every_byte(tmp_path: Path, size: int) -> None:
    path, seen = tmp_path / "file", set[str]()
    places = {0, size // 2, size // 80, size - 1}
    for content in (bytes(size), bytes(size + 1)):
        path.write_bytes(content)
        seen.add(digest(path))
    for place in places:
        changed = bytearray(size)
        changed[place] ^= 1
        path.write_bytes(changed)
        seen.add(digest(path))
    assert len(seen) == 2 + len(places)


def test_only_what_lies_below_the_same_name_is_listed_anew(tmp_path: Path) -> None:
    output = Output(tmp_path, ("model", "model.txt"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_text("1")
    (tmp_path / "model.txt").write_text("2")
    output.note("model", "model.txt")
    (tmp_path / "model" / "a").rename(tmp_path / "model" / "b")
    with pytest.raises(Refusal, match="b was not written"):
        output.check_own()
    output.note("model")
    output.check_own()
    assert set(json.loads((tmp_path / MANIFEST).read_text())["files"]) == {"model/b", "model.txt"}
