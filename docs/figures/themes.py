"""One look for all drawings, on a light page and on a dark one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

IMAGES = Path(__file__).resolve().parents[1] / "images"
Draw = Callable[["dict[str, str]"], Figure]

COLOURS = {
    "light": {"ink": "#333333", "retain": "#2b62c4", "forget": "#c0392b", "soft": "#bbbbbb"},
    "dark": {"ink": "#e2e4e9", "retain": "#7aa7ff", "forget": "#ff8a7a", "soft": "#6b7080"},
}


def save(name: str, draw: Draw) -> None:
    """Write `docs/images/NAME-light.svg` and `-dark.svg`: the same text each time."""
    for theme, colours in COLOURS.items():
        with matplotlib.rc_context(_style(colours["ink"], colours["soft"])):
            path = IMAGES / f"{name}-{theme}.svg"
            draw(colours).savefig(path, format="svg", transparent=True, metadata={"Date": None})


def _style(ink: str, soft: str) -> dict[str, Any]:
    """Letters that a phone of 390 pixels still shows."""
    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inked, ink),
        "axes.edgecolor": soft,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 15,
        "legend.frameon": False,
        "lines.linewidth": 2.0,
        "svg.fonttype": "path",
        "svg.hashsalt": "torch-alm",
    }
