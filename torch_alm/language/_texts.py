"""Text files as other programs write them: UTF-8, or UTF-16 and UTF-32 that say so themselves."""

import codecs
from pathlib import Path

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
UNPACK = "Is there text inside, to be unpacked first ({})"
FOREIGN = {
    b"\x1f\x8b": ("compressed by gzip", UNPACK.format("gunzip")),
    b"BZh": ("compressed by bzip2", UNPACK.format("bunzip2")),
    b"\xfd7zXZ\0": ("compressed by xz", UNPACK.format("unxz")),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard", UNPACK.format("unzstd")),
    b"PK\x03\x04": (
        "a ZIP archive, as Excel workbooks are",
        "Did you mean to unpack it, or to save the table as CSV",
    ),
    b"PAR1": ("a Parquet file", "Did you mean to write it as JSON lines"),
    b"ARROW1": ("an Arrow file", "Did you mean the folder that it is part of"),
    b"%PDF": ("a PDF", "Did you mean the text in it"),
    b"SQLite format 3": ("an SQLite database", "Did you mean to export a table of it as CSV"),
}


def read_text(path: Path) -> str:
    """The text of a file, without its byte order mark.

    Args:
        path: UTF-8, with or without a mark; UTF-16 or UTF-32 with one.

    Raises:
        ValueError: anything else; names the format where it is known, or the first line that is no
            UTF-8 and what it would be in Windows-1252.
    """
    data = path.read_bytes()
    for start, (found, question) in FOREIGN.items():
        if data.startswith(start):
            raise ValueError(f"{path} is {found}, and no UTF-8 text. {question}?")
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(_undecodable(path, encoding, data, error)) from error
    if "\0" in text:
        raise ValueError(
            f"{path} holds zero bytes, which no UTF-8 text does: it is UTF-16 without a byte order "
            "mark, or no text at all. Did you mean to save it as UTF-8?"
        )
    return text


def _undecodable(path: Path, encoding: str, data: bytes, error: UnicodeDecodeError) -> str:
    if encoding != "utf-8":
        return f"{path} begins as {encoding} and is not ({error}). Is the file cut off?"
    line = data.count(b"\n", 0, error.start) + 1
    byte = data[error.start : error.start + 1]
    other = byte.decode("cp1252", errors="replace")
    return (
        f"{path}, line {line} is not UTF-8 text: byte 0x{byte.hex()} has no meaning there, and "
        f"would be {other!r} in Windows-1252 (Latin-1). Did you mean to save it as UTF-8 "
        "(iconv -f WINDOWS-1252 -t UTF-8)?"
    )
