"""Memory of a step of a 7B model, counted on tensors without data: no weights, no device needed.

    python -m benchmarks.studies.memory [--output DIR] [--quick]

writes `results/memory.md` and `.json`.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from transformers import MistralConfig

from benchmarks import methods
from benchmarks.engine.memory import GB, SPARE, counted, described
from benchmarks.engine.model_setup import ModelSetup
from benchmarks.methods import Settings
from benchmarks.report import tables
from benchmarks.report.results import parsed, read_record, write_record

RMU = ModelSetup("rmu", dtype="bfloat16", checkpointing=True)
LORA = ModelSetup(lora=16, dtype="bfloat16", checkpointing=True)
WHOLE = ModelSetup(dtype="bfloat16", trained_dtype="bfloat16", checkpointing=True)
ON_RMU = Settings(losses="rmu", alpha=1.5e-3, batch_size=4)
EIGHT_BIT = Settings(optimizer="adamw8bit", batch_size=1)
SHORT, LONG = (4, 768), (1, 2048)


class Case(NamedTuple):
    """A line of the table; `card` is what it is to fit on, in GB."""

    what: str
    card: float
    how: ModelSetup
    key: str
    settings: Settings
    tokens: tuple[int, int]


def cases() -> list[Case]:
    """List the setups that a 7B model has to fit in, and one without any saving."""
    on_rmu = ("rmu", "dual_adamw+alm", "sharp_min_max", "relearning_resilient", "blur", "saul")
    found = [Case("WMDP, RMU's parameters", 80, RMU, key, ON_RMU, SHORT) for key in on_rmu]
    found += [
        Case("WMDP, LoRA of rank 16", 80, LORA, key, ON_RMU, SHORT) for key in ("rmu", "saul")
    ]
    found += [
        Case("MUSE, LoRA of rank 16", 80, LORA, key, Settings(batch_size=1), LONG)
        for key in ("dual_adamw+alm", "npo", "saul")
    ]
    offloaded = Settings(
        losses="rmu", optimizer="adamw8bit", alpha=1.5e-3, batch_size=4, reference="offloaded"
    )
    found += [Case("WMDP, all weights, 8-bit moments", 141, WHOLE, "saul", offloaded, SHORT)]
    found += [
        Case("MUSE, all weights, 8-bit moments", 141, WHOLE, key, its, LONG)
        for key, its in {
            "dual_adamw+alm": EIGHT_BIT,
            "npo": Settings(optimizer="adamw8bit", batch_size=1, reference="offloaded"),
            "saul": EIGHT_BIT,
        }.items()
    ]
    plain = ModelSetup(dtype="bfloat16", trained_dtype="bfloat16")
    return [*found, Case("MUSE, all weights, nothing saved", 141, plain, "saul", Settings(), LONG)]


def main(arguments: list[str] | None = None) -> int:
    """Count every case that has no line yet, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two layers, to see it run")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this text")
    options = parsed(parser, arguments)
    config = MistralConfig(num_hidden_layers=2 if options.quick else 32, use_cache=False)
    lines: dict[str, Any] = {}
    for case in (case for case in cases() if options.only in f"{case.what} {case.key}"):
        found = counted(config, case.how, case.key, case.settings, case.tokens)
        line = {
            "what": case.what,
            "method": case.key,
            "tokens": list(case.tokens),
            "card": case.card,
            **found._asdict(),
        }
        lines[f"{case.what}: {case.key}"] = line
        print(f"{case.what}: {methods.label(case.key)}: {described(found)}", flush=True)
    lines = read_record(options.output, "memory").get("lines", {}) | lines
    content = {"model": "7 billion weights, the shape of Mistral", "lines": lines}
    write_record(options.output, "memory", content, lambda _: markdown(list(lines.values())))
    return 0


def markdown(lines: list[dict[str, Any]]) -> str:
    heads = ("What", "Method", "Batch", "Weights", "Trained", "Peak", "Card", "Fits")
    rows = []
    for line in lines:
        numbers = (f"{line[name] / GB:.1f}" for name in ("weights", "trained", "peak"))
        fits = "yes" if line["peak"] <= SPARE * line["card"] * GB else "no"
        cells = (line["what"], methods.label(line["method"]), " x ".join(map(str, line["tokens"])))
        rows.append([*cells, *numbers, f"{line['card']:g}", fits])
    return (
        "# Memory of a step of a 7B model\n\n"
        "Written by `python -m benchmarks.studies.memory`; bytes in `memory.json`. GB, counted "
        "on tensors without data; a card may be filled to 95 %.\n\n"
        f"{tables.markdown(heads, rows, '---')}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
