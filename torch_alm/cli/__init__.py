"""The command `torch-alm`: unlearn, evaluate and attack language models from one's own files."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from torch_alm.cli.lasting import lasting

__all__ = ["main"]

NEEDED = ("jinja2", "peft", "rouge_score", "tqdm", "transformers")


@lasting()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 0 if it did what was asked, and a goal is met; 4 if it is met at a cost, 3 if
        it is not met; 2 for a refusal, 130 for an interruption.
    """
    try:
        from torch_alm.cli.options import parser

        given = parser().parse_args(argv)
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            print(
                f"torch-alm: {', '.join(missing)} cannot be imported, and the command cannot read "
                "a model without. Did you mean to install the extra `torch-alm[hf]`?",
                file=sys.stderr,
            )
            return 2
        from torch_alm.cli.command import run  # seconds: it imports torch and transformers

        return run(given)
    except KeyboardInterrupt:
        print("torch-alm: interrupted; nothing was changed.", file=sys.stderr)
        return 130
