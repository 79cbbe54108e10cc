"""Tables, figures and example answers of finished runs, made again; judged if a judge is named.

    python -m benchmarks.studies.report DIR [DIR ...]

With several folders, one per split, the figure of utility per split shows them side by side.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.options import script_parser
from benchmarks.report.layout import Layout
from benchmarks.report.page import publish
from benchmarks.report.results import ResultsFolder
from benchmarks.tasks.muse.layout import LAYOUT as MUSE
from benchmarks.tasks.tofu import judging
from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.judge import judge
from benchmarks.tasks.tofu.layout import LAYOUT as TOFU
from benchmarks.tasks.wmdp.layout import LAYOUT as WMDP

LAYOUTS = {"muse": MUSE, "tofu": TOFU, "wmdp": WMDP}
"""By the name that a benchmark gives itself in `settings.json`."""


def shared_layout(folders: Sequence[Path]) -> Layout:
    """Look up the layout of the benchmark that all folders are of.

    Raises:
        ValueError: Several benchmarks, whose numbers share no figure, or an unknown one.
    """
    found = [json.loads(ResultsFolder(path).settings.read_text())["benchmark"] for path in folders]
    if len(set(found)) > 1:
        raise ValueError(
            f"{', '.join(map(str, folders))} hold results of {', '.join(found)}; one figure would "
            "show numbers that cannot be compared. Did you mean one call per benchmark?"
        )
    if found[0] not in LAYOUTS:
        raise ValueError(
            f"no table is known for the benchmark {found[0]!r}; its results cannot be shown. "
            f"Known: {', '.join(LAYOUTS)}. Was the folder written by another version?"
        )
    return LAYOUTS[found[0]]


def arguments() -> argparse.ArgumentParser:
    parser = script_parser("report", __doc__)
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="DIR", help="the --output of a benchmark")
    add("--judge", metavar="MODEL", help="have this chat model judge every answer first")
    add("--judge-url", metavar="URL", help="its OpenAI-compatible endpoint")
    add("--triples", type=Path, metavar="FILE", help="write what a judge needs, and stop")
    add("--judgements", type=Path, metavar="FILE", help="that file with the scores filled in")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Make tables and figures from folders of results."""
    parser = arguments()
    given = parser.parse_args(argv)
    folders = [ResultsFolder(path) for path in given.folders]
    for folder in folders:
        if not folder.settings.exists():
            parser.error(f"{folder.path} has no settings.json. Is it the --output of a benchmark?")
    if given.triples is not None:
        judging.triples(folders, given.triples)
        return 0
    for folder in folders:
        if given.judgements is not None:
            judging.judge_folder(folder, judging.from_file(given.judgements))
        elif given.judge is not None:
            chat = Chat(given.judge, folder.path / "chat.jsonl", base_url=given.judge_url)
            judging.judge_folder(folder, lambda rows, chat=chat: judge(rows, chat, progress=True))
    try:
        publish(given.folders, shared_layout(given.folders))
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
