"""A name, a parameter or a default cannot change unnoticed: all of them are written down."""

import pytest

from tests import public_api

RENEW = "python -m tests.public_api"


def test_public_api_is_the_recorded_one() -> None:
    recorded = public_api.RECORDED.read_text().splitlines()
    found = public_api.described().splitlines()
    gone = sorted(set(recorded) - set(found))
    new = sorted(set(found) - set(recorded))
    assert found == recorded, (
        f"The public API changed. Gone: {gone}. New: {new}. If that is meant, `{RENEW}` writes it "
        "down; did you tell users of it in CHANGELOG.md?"
    )


class Example:
    """A class as users see it."""

    shared = 1

    def __init__(self, first: int, *, second: object = len) -> None:
        self.first = first
        self._hidden = second

    def __call__(self, *values: float) -> None:
        self.latest = values

    @property
    def third(self) -> int:
        return self.first

    @staticmethod
    def fixed(a: int = 0) -> int:
        return a

    def _private(self) -> None: ...


def test_what_is_written_down_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_api, "OURS", __name__)
    assert list(public_api.of_object("Example", Example)) == [
        "Example(first, *, second=len)",
        "Example.__call__(*values)",
        "Example.first",
        "Example.fixed(a=0)",
        "Example.latest",
        "Example.shared",
        "Example.third",
    ]
