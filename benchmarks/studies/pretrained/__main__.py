r"""Pretrain a small Llama on running text, in a folder that `tofu.py --base` starts from.

    python -m benchmarks.studies.pretrained --texts DIR DIR --output MODEL
    python benchmarks/tofu.py --data TOFU --base MODEL --replay MODEL/read.jsonl \
        --prose MODEL/held_out.jsonl

Ctrl-C or a lost machine costs the minutes since the last checkpoint: the same command goes on. One
document in twenty is held out, and how well the model reads those is its perplexity.
Without `--replay` it unlearns to read while it is taught.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.options import script_parser
from benchmarks.engine.prose import blocks, perplexity
from benchmarks.engine.scratch import Recipe, Schedule, build_tokenizer
from benchmarks.report.results import write_json
from benchmarks.studies.pretrained import reading, texts


def main(argv: Sequence[str] | None = None) -> int:
    """Read what is left to read and write the model; 0 when it is there."""
    parser = script_parser("pretrained", __doc__)
    add = parser.add_argument
    add("--texts", type=Path, nargs="+", required=True, metavar="DIR", help="folders of texts")
    add("--output", type=Path, required=True, metavar="DIR", help="the model goes here")
    add("--tokens", type=int, default=5_000_000, metavar="N", help="how many to read in all")
    add("--width", type=int, default=320, metavar="N", help="hidden size; 64 a head")
    add("--layers", type=int, default=8, metavar="N", help="transformer blocks")
    add("--vocabulary", type=int, default=8000, metavar="N", help="tokens of the byte-pair coding")
    add("--length", type=int, default=256, metavar="N", help="tokens of a row")
    add("--batch-size", type=int, default=8, metavar="N", help="rows of a step")
    add("--lr", type=float, default=1e-3, metavar="X", help="largest learning rate")
    add("--minutes", type=float, default=5, metavar="X", help="between two checkpoints")
    add("--seed", type=int, default=0, metavar="N", help="of weights and order")
    given = parser.parse_args(argv)
    try:
        found = list(dict.fromkeys(texts.documents(given.texts)))
    except ValueError as error:
        parser.error(str(error))
    kept = [text for text in found if not texts.is_held_out(text)]
    held_out = [text for text in found if texts.is_held_out(text)]
    given.output.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("held_out", held_out), ("read", kept)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in chosen)
        (given.output / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    schedule = Schedule(1, given.batch_size, given.lr, bfloat16=True)
    heads = max(1, given.width // 64)
    recipe = Recipe("bpe", given.vocabulary, given.layers, given.width, heads, schedule)
    tokenizer = build_tokenizer(kept, recipe)
    rows = blocks(tokenizer, kept, given.length)
    print(f"{len(kept):,} documents, {rows.numel():,} tokens; {len(held_out):,} held out")
    order = reading.Order(rows, given.batch_size, given.tokens, given.seed)
    model = reading.read(tokenizer, recipe, order, given.output, given.minutes * 60)
    unread = blocks(tokenizer, held_out, given.length)
    report = {"tokens": given.tokens, "perplexity": perplexity(model, unread)}
    write_json(given.output / "reading.json", report)
    print(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
