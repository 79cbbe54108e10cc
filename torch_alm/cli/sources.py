"""Rows from wherever people keep them: JSON, tables, Parquet, plain text, data sets by name."""

import csv
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch_alm.language import Record, read_records, read_text, record_of
from torch_alm.unlearning.hub import check_known
from torch_alm.unlearning.refusal import Refusal, first_line

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
INFORMATION = {"dataset_infos.json", "dataset_dict.json", "dataset_info.json", "state.json"}
SUFFIXES = {".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".parquet"}
BETWEEN_TEXTS = re.compile(r"^(?:-{3,}|<\|endoftext\|>)[ \t\r]*$", re.MULTILINE)
DELIMITERS = (",", ";", "\t")  # a program that writes decimal commas parts cells by semicolons


def records_of(path: Path) -> list[Record]:
    """All rows under a path, or of a data set by that name.

    Args:
        path: a file, whose ending tells tables and texts (`.csv`, `.tsv`, `.txt`) from JSON, or a
            Parquet file under any name; where there is no file, a data set: a folder or a name on
            the hub, with `:SPLIT` or `:CONFIG:SPLIT` after it.

    Raises:
        ValueError: it cannot be read as what it is; names file and row.
        OSError: there is no such file, and it is no name of a data set either.
        Refusal: a data set that cannot be loaded.
    """
    if not path.is_file() and _may_be_name(path):
        return data_set(path.as_posix())
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return _parquet(path)
    readers: dict[str, Callable[[Path], Iterable[Record]]] = {
        ".csv": _table,
        ".tsv": _table,
        ".txt": lambda path: _documents(str(path), read_text(path)),
    }
    return list(readers.get(path.suffix.lower(), read_records)(path))


def data_set(name: str) -> list[Record]:
    """All rows of a data set of the hub, or of a folder, without a copy of them in a cache.

    Raises:
        Refusal: it cannot be loaded, or has several splits and none was named.
    """
    place, config, split = _parted(name)
    if split is None and _has_only_texts(Path(place)):
        # The library would cut them at each line, and choose by their names which to read
        return [r for text in _rows_in(Path(place)) for r in _documents(str(text), read_text(text))]
    datasets = _imported("datasets", f"{name} is no file, and a data set")
    if not Path(place).is_dir():
        check_known(f"{name} is no file", place, "dataset")
    saved = [Path(place) / file for file in ("dataset_dict.json", "state.json")]
    try:
        if any(map(Path.is_file, saved)):
            found = datasets.load_from_disk(place)
        else:
            found = datasets.load_dataset(place, config, streaming=True)
            if Path(place).is_dir():
                _tell_unread(place, datasets.load_dataset_builder(place, config).config.data_files)
        rows = _split(name, found, split)
        return [record_of(f"{name}, row {i}", dict(row)) for i, row in enumerate(rows, 1)]
    except Exception as error:  # the library has no error of its own for the many reasons
        if isinstance(error, Refusal) or str(error).startswith(f"{name}, row"):
            raise
        raise Refusal(
            f"{name} is no file, and cannot be loaded as a data set "
            f"({first_line(error).rstrip('.')}). Is it the path of a file, a folder with a data "
            "set, or a name on the hub (NAME, NAME:SPLIT or NAME:CONFIG:SPLIT)?"
        ) from error


def _has_only_texts(folder: Path) -> bool:
    """Tell whether a folder's files of rows are all plain text."""
    return {file.suffix.lower() for file in _rows_in(folder)} == {".txt"}


def _rows_in(folder: Path) -> list[Path]:
    """List the files under a folder that may hold rows; none where there is no folder."""
    files = sorted(folder.rglob("*")) if folder.is_dir() else []
    return [f for f in files if f.suffix.lower() in SUFFIXES and f.name not in INFORMATION]


def _tell_unread(place: str, read: Mapping[str, Iterable[Any]] | None) -> None:
    """Warn of files in a folder that `datasets` does not take for rows, by their names or kinds."""
    taken = {Path(str(file)).resolve() for files in (read or {}).values() for file in files}
    left = [str(file) for file in _rows_in(Path(place)) if file.resolve() not in taken]
    if left:
        warnings.warn(
            f"{place}: {', '.join(left[:5])}{' and others' * (len(left) > 5)} will not be read: "
            "`datasets` takes files of one kind, and of those it finds splits by their names. "
            "Should the rows be in one file, or each kind in a folder of its own?",
            stacklevel=2,
        )


def _may_be_name(path: Path) -> bool:
    place, *_ = _parted(path.as_posix())
    if Path(place).is_dir():
        return True
    looks = NAME.fullmatch(place) is not None and not place.startswith(".")
    return looks and Path(place).suffix.lower() not in SUFFIXES


def _parted(name: str) -> tuple[str, str | None, str | None]:
    """Place, configuration and split."""
    if Path(name).is_dir():
        return name, None, None
    place, *rest = name.rsplit(":", 2)
    if len(rest) == 2 and Path(f"{place}:{rest[0]}").is_dir():  # such as C:/folder:train
        return f"{place}:{rest[0]}", None, rest[1]
    return place, (rest[0] if len(rest) == 2 else None), (rest[-1] if rest else None)


def _split(name: str, found: Any, split: str | None) -> Iterable[Any]:  # noqa: ANN401  # either kind
    splits: list[str] = list(found) if isinstance(found, dict) else []
    if not splits:
        return found
    chosen = splits[0] if split is None and len(splits) == 1 else split
    if chosen not in splits:
        one = "none was named" if split is None else f"{split!r} is none of them"
        raise Refusal(
            f"{name} has the splits {', '.join(splits)}, and {one}. Did you mean "
            f"{name.removesuffix(f':{split}')}:{splits[0]}?"
        )
    return found[chosen]


def _parquet(path: Path) -> list[Record]:
    # Not through `datasets`, which would leave a copy of the rows in its cache
    parquet = _imported("pyarrow.parquet", f"{path} is a Parquet file, and that")
    try:
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:  # of pyarrow: a file cut off, a codec it was built without
        raise ValueError(
            f"{path} begins as Parquet and cannot be read ({error}). Is the file cut off?"
        ) from error
    return [record_of(f"{path}, row {i}", row) for i, row in enumerate(rows, 1)]


def _imported(module: str, wanted: str) -> Any:  # noqa: ANN401  # a module
    try:
        return import_module(module)
    except ImportError as error:
        raise Refusal(
            f"{wanted} is read with {module.partition('.')[0]}, which cannot be imported "
            f"({error}). Did you mean to install the extra `torch-alm[hf]`?"
        ) from error


def _table(path: Path) -> Iterator[Record]:
    """Rows below a line of names; an empty cell is no value."""
    text = read_text(path)
    header = next(iter(text.lstrip().splitlines()), "")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=header.count)
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the limit is for every reader at once
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    line = 1
    try:
        for cells in rows:
            where, line = f"{path}, line {line}", rows.line_num + 1
            if names is None and cells:
                names = _names(where, cells)
            elif names is not None and any(map(str.strip, cells)):
                yield record_of(where, _fields(where, names, cells))
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {line} is no CSV ({error}). Is a quotation mark missing?"
        ) from error


def _names(where: str, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{where} names a column twice ({', '.join(names)}), and only one could count. Is it "
            "the line of names?"
        )
    return names


def _fields(where: str, names: list[str], cells: list[str]) -> dict[str, str | None]:
    if len(cells) != len(names):
        raise ValueError(
            f"{where} has {len(cells)} cells below {len(names)} names ({', '.join(names)}), so "
            "that no cell has a sure place. Is a quotation mark missing?"
        )
    return {name: cell if cell.strip() else None for name, cell in zip(names, cells, strict=True)}


def _documents(name: str, text: str) -> Iterator[Record]:
    ends = [*((m.start(), m.end()) for m in BETWEEN_TEXTS.finditer(text)), (len(text), len(text))]
    start = 0
    for end, following in ends:
        document = text[start:end]
        if document.strip():
            first = start + len(document) - len(document.lstrip())
            where = f"{name}, line {text.count(chr(10), 0, first) + 1}"
            yield record_of(where, {"text": document.strip("\r\n")})
        start = following
