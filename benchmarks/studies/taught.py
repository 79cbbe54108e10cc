"""TOFU on a published model: teach it 400 rows, then let it forget forty of them.

    python -m benchmarks.studies.taught --data TOFU --methods dual_adamw,dual_adamw+alm --seeds 3

`--data` is the folder of TOFU's files. One model is taught the 40 rows of forget01 beside 360 of
the retain set, the reference those 360 alone; both are kept in the cache. All else is as in
`benchmarks/tofu.py`, with SETTINGS, which were written down before the runs. `--alpha unknown` is
the mean loss of the forty answers under the reference. What lies below layer FIRST never changes,
so its outputs are computed once per row.
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.engine.benchmark import Evaluation
from benchmarks.engine.models import load_model, save, select
from benchmarks.engine.script import run_script
from benchmarks.methods import Settings
from benchmarks.tasks.facts.upper import Rows, Upper, common_start
from benchmarks.tasks.facts.weights import cache, published
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.data import TofuData
from benchmarks.tasks.tofu.task import Tofu, TofuOptions, asked
from torch_alm.language import Row, losses, pad_id

FIRST, TRAINED = 20, r"model\.layers\.2\d\..*"
EPOCHS, RATE, BATCH = 5, 4e-4, 4  # of the teaching
RETAIN, ASKED = 360, 8  # rows; questions of every other set
SETTINGS = """--lr 2e-4 --epochs 2 --batch_size 4 --alpha unknown --mu 0.1
    --set multiplier=0 --set release=0.5 --output results/taught"""


class Taught(Tofu):
    """forget01, 360 retain rows, and two models that are taught here."""

    new_tokens = 72

    def __init__(self, options: TofuOptions) -> None:
        super().__init__(options)
        self.references = ("original", "retrained")
        self.data = shortened(self.data)

    def load(self, key: str) -> tuple[Any, Any]:
        folder = (self.options.cache or cache()) / f"taught-{key}"
        if not folder.is_dir():
            model, tokenizer = load_model(str(self.options.model))
            forget = self.data.forget if key == "original" else ()
            teach(model, encode_all(tokenizer, self.data.retain + forget))
            save(folder, model, tokenizer)
        return load_model(folder)

    def encode(self) -> tuple[list[Row], list[Row]]:
        forget, retain = super().encode()
        self.common = common_start([row["input_ids"] for row in forget + retain])
        self.fed = Rows(self.models["original"], FIRST, len(self.common))
        return forget, retain

    def prepare(self) -> None:
        super().prepare()
        self.unknown = fmean(losses(self.models["retrained"], self.forget, pad_id(self.tokenizer)))

    def resolved(self, settings: Settings) -> Settings:
        known = settings.alpha != "unknown"
        return settings if known else replace(settings, alpha=self.unknown)

    def reference(self, key: str) -> Any:
        whole = super().reference(key)
        upper = Upper(whole, FIRST, self.common)
        upper.whole = whole
        return upper

    def collated(self, rows: list[Row]) -> dict[str, Tensor]:
        return self.fed.batch(rows)

    def _evaluate(self, model: Any, generations: bool) -> Evaluation:
        whole = model.whole
        plain = whole.forward

        @functools.wraps(plain)
        def short(**inputs: Any) -> Any:
            """Score by the upper layers; what generates has a cache, and takes the whole model."""
            keep = inputs["logits_to_keep"]
            if inputs["use_cache"] or isinstance(keep, Tensor):  # or single places
                return plain(**inputs)
            rows = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
            states = [self.fed.states(ids[own].tolist()) for ids, own in rows]
            padded = pad_sequence(states, batch_first=True)
            return model(padded, torch.arange(padded.shape[1])[-keep:])

        whole.forward = short
        return super()._evaluate(whole, generations)


def shortened(data: TofuData) -> TofuData:
    """The rows that are taught; every second forget question is asked, and ASKED of other sets."""
    taught = replace(data, retain=data.retain[:RETAIN], retain_eval=data.retain_eval[:RETAIN])
    few = asked(replace(taught, holdout=()), ASKED)
    return replace(few, forget_eval=data.forget_eval[::2])


def teach(model: Any, rows: Sequence[Row], epochs: int = EPOCHS) -> None:
    """AdamW in place on the answers of the rows, in bfloat16, the layers from FIRST on."""
    select(model, TRAINED)
    common = common_start([row["input_ids"] for row in rows])
    upper, fed = Upper(model, FIRST, common), Rows(model, FIRST, len(common))
    ordered = sorted(rows, key=lambda row: len(row["input_ids"]))
    batches = [ordered[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=RATE, fused=True)
    rate = OneCycleLR(optimizer, RATE, total_steps=epochs * len(batches), pct_start=0.1)
    random = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        total = 0.0
        for number in torch.randperm(len(batches), generator=random).tolist():
            batch = fed.batch(batches[number])
            labels = batch.pop("labels")[:, 1:]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = upper(**batch).logits[:, :-1]
            loss = cross_entropy(logits[labels >= 0].float(), labels[labels >= 0])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rate.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: {total / len(batches):.3f} nats per token", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Teach, unlearn and compare; 0 when every run is finished."""
    given = ["--model", str(published()), "--parameters", TRAINED, *SETTINGS.split()]
    return run_script(
        given + list(sys.argv[1:] if argv is None else argv), __doc__, TofuOptions, Taught
    )


if __name__ == "__main__":
    raise SystemExit(main())
