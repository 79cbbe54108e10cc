"""Rows of JSON files in either form; what is refused is tested where files are named."""

from pathlib import Path

from torch_alm.language import read_records


def test_a_list_is_one_wherever_it_begins_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('\n\n  [{"a": 1},\n{"a": 2}]  \n')
    found = read_records(path)
    assert [record.fields for record in found] == [{"a": 1}, {"a": 2}]
    assert [record.where for record in found] == [f"{path}, row 1", f"{path}, row 2"]
