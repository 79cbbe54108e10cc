"""Addresses at which others document the types that our signatures name.

Their own inventories would have to be fetched, and the site is built without a network. The types
of this library that have no page of their own stand in the table of `api/index.md`.
"""

from __future__ import annotations

import re

PYTHON = "https://docs.python.org/3/library"
TORCH = "https://docs.pytorch.org/docs/stable"
TRANSFORMERS = "https://huggingface.co/docs/transformers/main_classes"
NAMES = {
    f"{PYTHON}/collections.abc.html": """collections.abc.Callable collections.abc.Collection
        collections.abc.Iterable collections.abc.Iterator collections.abc.Mapping
        collections.abc.Sequence""",
    f"{PYTHON}/contextlib.html": "contextlib.AbstractContextManager contextlib.nullcontext",
    f"{PYTHON}/exceptions.html": "FloatingPointError RuntimeError TypeError ValueError",
    f"{PYTHON}/functions.html": "bool float int object",
    f"{PYTHON}/pathlib.html": "pathlib.Path",
    f"{PYTHON}/stdtypes.html": "dict list str tuple",
    f"{PYTHON}/typing.html": "typing.Any typing.Literal typing.SupportsIndex typing.TypeAlias",
    f"{TORCH}/generated/torch.Tensor.backward.html": "torch.Tensor.backward",
    f"{TORCH}/generated/torch.nn.Module.html": "torch.nn.Module",
    f"{TORCH}/generated/torch.zeros.html": "torch.zeros",
    f"{TORCH}/nn.html": "torch.nn",
    f"{TORCH}/optim.html": "torch.optim.Optimizer",
    f"{TORCH}/tensor_attributes.html": "torch.device torch.dtype torch.float32",
    f"{TORCH}/tensors.html": "torch.Tensor",
    f"{TORCH}/torch.html": "torch",
    f"{TRANSFORMERS}/callback": "transformers.TrainerControl transformers.TrainerState",
    f"{TRANSFORMERS}/trainer": "transformers.TrainingArguments",
}
# A name without a link. Those in bold are the fields of the class that the page is about.
UNKNOWN = re.compile(r'(?<!<b><code>)<span title="([\w.]+)">')


def addresses() -> dict[str, str]:
    """The address of each name."""
    return {name: f"{page}#{name}" for page, names in NAMES.items() for name in names.split()}


def without_a_link(html: str) -> list[str]:
    """The types of signatures on a page that lead nowhere."""
    return sorted(set(UNKNOWN.findall(html)))
