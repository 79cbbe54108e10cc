"""Rows of files of any kind, read as text."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

from torch_alm.language import Format, Record, read_records, record_of
from torch_alm.language._records import read_text
from torch_alm.unlearning.errors import Refusal, first_line
from torch_alm.unlearning.rows import Entry, check_sets, entry_of, set_aside

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".parquet")


def read_entries(
    path: Path, role: str, columns: Mapping[str, Mapping[str, str]] | None = None
) -> list[Entry]:
    """Read the rows of a file or folder; `columns` are our names and the user's, by role."""
    names = {**(columns or {}).get("", {}), **(columns or {}).get(role, {})}
    fix = f"--columns {role}:question=NAME,answer=NAME"
    try:
        entries = [entry_of(_rename_columns(record, names), fix) for record in records_of(path)]
    except ValueError as error:
        raise Refusal(str(error)) from error
    if not entries:
        raise Refusal(f"the {role} file {path} has no rows. Is it the right file?")
    return entries


def records_of(path: Path) -> list[Record]:
    """Return the rows of a file, or of the files of a folder, with each value as text."""
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        return [record for each in found for record in records_of(each)]
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return [*_read_table(path, "\t" if kind == ".tsv" else None)]
    if kind == ".parquet":
        return [*_read_parquet(path)]
    if kind == ".txt":
        text = read_text(path).strip("\r\n")
        return [record_of(str(path), {"text": text})] if text.strip() else []
    return read_records(path)


def _read_table(path: Path, separator: str | None) -> Iterator[Record]:
    """Yield the rows below a line of names; an empty cell is no value."""
    header = next(iter(read_text(path).lstrip().splitlines()), "")
    if not header:
        return
    separator = separator or max((",", ";", "\t"), key=header.count)
    how: Any = {"sep": separator, "dtype": str, "skipinitialspace": f"{separator} " in header}
    try:
        found = pd.read_csv(path, header=None, keep_default_na=False, encoding="utf-8-sig", **how)
    except (pd.errors.ParserError, ValueError) as error:
        told = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise ValueError(f"{path} is no table ({told}). Is a quotation mark missing?") from error
    names, *rows = ([*row] for row in found.itertuples(index=False, name=None))
    names = [str(name).strip() for name in names]
    if len({*names}) < len(names):
        raise ValueError(
            f"{path} names a column twice ({', '.join(names)}), and only one could count. Is it "
            "the line of names?"
        )
    for i, cells in enumerate(rows, 1):
        values = [cell if isinstance(cell, str) and cell.strip() else None for cell in cells]
        if any(values):
            yield record_of(f"{path}, row {i}", dict(zip(names, values, strict=True)))


def _read_parquet(path: Path) -> Iterator[Record]:
    from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:  # of pyarrow: a file cut off, a codec it was built without
        raise ValueError(
            f"{path} cannot be read as Parquet ({first_line(error)}). Is the file cut off?"
        ) from error
    for i, row in enumerate(rows, 1):
        texts = {k: str(v) if isinstance(v, int) else v for k, v in row.items()}
        yield record_of(f"{path}, row {i}", texts)


def _rename_columns(record: Record, columns: Mapping[str, str]) -> Record:
    """Return the record with our names: those of `columns`, or all, in any case."""
    by_case = {name.strip().casefold(): name for name in record.fields}
    if not columns:
        return record._replace(fields={k: record.fields[name] for k, name in by_case.items()})
    if missing := [name for name in columns.values() if name.casefold() not in by_case]:
        raise ValueError(
            f"{record.where} has no column {missing[0]!r} for --columns, only "
            f"{sorted(record.fields)}. Is the name right?"
        )
    theirs = {ours: by_case[name.casefold()] for ours, name in columns.items()}
    return record._replace(fields={ours: record.fields[name] for ours, name in theirs.items()})


def read_files(given: argparse.Namespace) -> dict[str, list[Entry]]:
    """Read all files; without a probe file, `unlearn` sets a fifth of the retain rows aside."""
    probes: list[Path] = getattr(given, "probe", [])
    paths = {"forget": [given.forget], "retain": [given.retain], "probe": probes}
    paths["holdout"] = [] if given.holdout is None else [given.holdout]
    found = {
        name: [entry for path in each for entry in read_entries(path, name, given.columns)]
        for name, each in paths.items()
    }
    _read_template(given)
    check_sets(found)
    if given.verb == "unlearn" and not probes:
        set_aside(found)
    return found


def _read_template(given: argparse.Namespace) -> None:
    r"""Put the text of a `--template` in its place: that of a file, or its own, `\n` a newline."""
    written = given.template
    try:
        if written is not None and "{" not in written and Path(written).is_file():
            written = read_text(Path(written)).removesuffix("\n")
        elif written is not None:
            written = written.replace("\\n", "\n")
        given.template = written
        Format(template=given.template, system=given.system)
    except (OSError, ValueError) as error:
        raise Refusal(f"--template: {error}") from error
