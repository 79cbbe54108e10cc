r"""TOFU on a published model, at the paper's point: 50 steps of 8 forget and 8 retain rows.

    python -m benchmarks.studies.taught --data TOFU --seeds 3
    python -m benchmarks.studies.taught --data TOFU --seeds 3 \
        --lr 1.2 --alpha 10 --output results/taught-10

`--data` is the folder of TOFU's files. One model is taught the 40 rows of forget01 beside 360 of
the retain set, the reference those 360 alone; both are kept in the cache. All else is as in
`benchmarks/tofu.py`, with SETTINGS. `--alpha unknown` is the mean loss of the forty answers under
the reference. `--lr` is in nats: what a step of AdamW takes off their log-odds at first. Of real
authors and world facts those are asked that the published model answers right. What lies below
layer FIRST never changes, so its outputs are computed once per row.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.engine.benchmark import Evaluation
from benchmarks.engine.models import load_model, save_model, select_trainable
from benchmarks.engine.script import run_script
from benchmarks.methods import Settings
from benchmarks.tasks.facts.upper import CachedRows, UpperLayers, common_start
from benchmarks.tasks.facts.weights import cache_folder, make_published
from benchmarks.tasks.tofu.batches import encode, encode_all
from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.task import Tofu, TofuOptions, shorten
from torch_alm.language import Row, answer_scores, greedy_answers, losses, pad_id
from torch_alm.measures import token_nll
from torch_alm.thresholds import radius_for, rate_for

Examples = tuple[Example, ...]
FIRST, TRAINED = 20, r"model\.layers\.2\d\..*"
EPOCHS, RATE, BATCH = 5, 4e-4, 4  # of the teaching
RETAIN, ASKED = 360, 40  # rows; most questions of a set
SHORT = 32  # tokens of a neighbour's answer
RADIUS = 0.5  # nats
METHODS = (
    "saul,saul_no_alm,saul_no_sam,saul_no_alm_no_sam,dual_adamw,dual_adamw+alm,npo,npo+alm,"
    "pdu,pdu+alm,blur,blur+alm"
)
SETTINGS = f"""--methods {METHODS} --epochs 10 --batch_size 8 --lr 0.3 --alpha unknown
    --mu 0.1 --set multiplier=0 --set release=0.5 --output results/taught"""


class TaughtTofu(Tofu):
    """forget01, 360 retain rows, and two models that are taught here."""

    new_tokens = 72

    def __init__(self, options: TofuOptions) -> None:
        super().__init__(options)
        self.references = ("original", "retrained")
        model, tokenizer = load_model(str(options.model))
        self.data = select_rows(self.data, functools.partial(list_known, model, tokenizer))

    def load(self, key: str) -> tuple[Any, Any]:
        folder = (self.options.cache or cache_folder()) / f"taught-{key}"
        if not folder.is_dir():
            model, tokenizer = load_model(str(self.options.model))
            forget = self.data.forget if key == "original" else ()
            teach(model, encode_all(tokenizer, self.data.retain + forget))
            save_model(folder, model, tokenizer)
        return load_model(folder)

    def encode(self) -> tuple[list[Row], list[Row]]:
        forget, retain = super().encode()
        self.common = common_start([row["input_ids"] for row in forget + retain])
        self.fed = CachedRows(self.models["original"].to(self.device), FIRST, len(self.common))
        return forget, retain

    def prepare(self) -> None:
        super().prepare()
        self.unknown = fmean(losses(self.models["retrained"], self.forget, pad_id(self.tokenizer)))

    def resolve_settings(self, settings: Settings) -> Settings:
        """The settings with this model's threshold, rate and radii; a radius of 0 stays."""
        found = {**self.numbers, "lr": settings.lr * self.numbers["lr"]}
        found |= {"alpha": self.unknown} if settings.alpha == "unknown" else {}
        return replace(settings, **{k: v for k, v in found.items() if getattr(settings, k, 0)})

    @functools.cached_property
    def numbers(self) -> dict[str, float]:
        """The rate of a nat and the radii of RADIUS, by what they do to the first rows."""
        upper: Any = self.copy_reference("original")
        wanted = [p for p in upper.parameters() if p.requires_grad]
        starts = range(0, len(self.forget), 8)
        forget = [self.collate_rows(self.forget[at : at + 8]) for at in starts]
        retain = [self.collate_rows(self.retain[at : at + 8]) for at in starts]
        rate = rate_for(torch.optim.AdamW(wanted), upper.odds, forget, change=1.0)
        near = radius_for(wanted, upper.odds, forget, change=RADIUS)
        worst = radius_for(wanted, lambda batch: token_nll(upper, batch), retain, change=RADIUS)
        return {"lr": rate, "rho_forget": near.value, "rho_retain": worst.value}

    def copy_reference(self, key: str) -> Any:
        whole = super().copy_reference(key)
        upper = UpperLayers(whole, FIRST, self.common)
        upper.whole = whole
        return upper

    def collate_rows(self, rows: list[Row]) -> dict[str, Tensor]:
        return self.fed.batch(rows)

    def _evaluate(self, model: Any, generations: bool) -> Evaluation:
        whole = model.whole
        plain = whole.forward

        @functools.wraps(plain)
        def score_by_upper(**inputs: Any) -> Any:
            """Score by the upper layers; what generates has a cache, and takes the whole model."""
            keep = inputs["logits_to_keep"]
            if inputs["use_cache"] or isinstance(keep, Tensor):  # or single places
                return plain(**inputs)
            rows = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
            states = [self.fed.states(ids[own].tolist()) for ids, own in rows]
            padded = pad_sequence(states, batch_first=True)
            return model(padded, torch.arange(padded.shape[1])[-keep:])

        whole.forward = score_by_upper
        return super()._evaluate(whole, generations)


def select_rows(data: TofuData, known: Callable[[Examples], Examples]) -> TofuData:
    """The rows that are taught; at most ASKED questions of a set, those of neighbours known."""
    data = replace(data, retain=data.retain[:RETAIN], retain_eval=data.retain_eval[:RETAIN])
    authors, facts = known(data.real_authors), known(data.world_facts)
    return shorten(replace(data, holdout=(), real_authors=authors, world_facts=facts), ASKED)


def list_known(model: Any, tokenizer: Any, examples: Examples) -> Examples:
    """The examples that the model answers right."""
    rows = [encode(tokenizer, *example.pair) for example in examples]
    scores = answer_scores(model, rows, pad_id(tokenizer), tau=0.1)
    said = greedy_answers(model, tokenizer, rows, scores, SHORT)
    found = zip(examples, said, strict=True)
    return tuple(e for e, text in found if e.answer.lower() in text.lower())


def teach(model: Any, rows: Sequence[Row], epochs: int = EPOCHS) -> None:
    """AdamW in place on the answers of the rows, in bfloat16, the layers from FIRST on."""
    select_trainable(model, TRAINED)
    common = common_start([row["input_ids"] for row in rows])
    upper, fed = UpperLayers(model, FIRST, common), CachedRows(model, FIRST, len(common))
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
    given = ["--model", str(make_published()), "--parameters", TRAINED, *SETTINGS.split()]
    return run_script(
        given + list(sys.argv[1:] if argv is None else argv), __doc__, TofuOptions, TaughtTofu
    )


if __name__ == "__main__":
    raise SystemExit(main())
