"""A digest tells one state of a file from another, and is there at once for a large one."""

import os
from pathlib import Path

import pytest

from benchmarks.engine.digest import BLOCK, BLOCKS, digest


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK + 1, 3 * BLOCK, BLOCK * BLOCKS + 7])
def test_a_digest_changes_with_the_size_and_with_every_byte_of_a_file_it_can_read(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "file"
    content = bytearray(size)
    seen: set[str | None] = set()
    for place in {0, size // 2, size - 1, min(size - 1, BLOCK)}:
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        seen.add(digest(path))
    path.write_bytes(content)
    seen.add(digest(path))
    path.write_bytes(content + b"\0")
    seen.add(digest(path))
    assert len(seen) == 2 + len({0, size // 2, size - 1, min(size - 1, BLOCK)})


def test_a_digest_of_a_large_file_looks_at_places_all_over_it(tmp_path: Path) -> None:
    """A file of many gigabytes is not read from end to end, and its end is not left out."""
    path = tmp_path / "large"
    size = BLOCK * BLOCKS * 8
    with path.open("wb") as file:
        file.truncate(size)
    empty = digest(path)
    for place in (0, size // 2, size - size // BLOCKS):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        seen = digest(path)
        assert seen != empty
        empty = seen
