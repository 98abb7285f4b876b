"""scripts/plain_english finds sentences that are hard to read, and fails if there are more."""

import importlib.machinery
import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "plain_english"


@pytest.fixture
def plain(monkeypatch, tmp_path):
    loader = importlib.machinery.SourceFileLoader("plain_english", str(SCRIPT))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("plain_english", loader)
    )
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "KEPT", tmp_path / "kept.json")
    return module


@pytest.mark.parametrize(
    ("path", "line", "found"),
    [
        ("a.hpp", "// Of a query, in bytes.", 1),
        ("a.hpp", "// Number of bytes of a query.", 0),
        ("a.cpp", 'throw InvalidArgument("its numbers are none of ours");', 1),
        ("a.py", "    # What nobody has seen", 1),
        ("a.py", "nobody = 3", 0),
        ("a.md", "A query is searched seldom.", 1),
        ("a.md", "    a query is searched seldom", 0),
    ],
)
def test_a_line_is_found_by_its_pattern(plain, path, line, found):
    assert len(list(plain.suspicious(iter([(path, line)])))) == found


def test_more_lines_than_kept_fail_and_the_numbers_only_fall(plain, monkeypatch, capsys):
    monkeypatch.setattr(plain, "counts", lambda: {"cli": 5})
    plain.keep()
    assert plain.check() == 0
    monkeypatch.setattr(plain, "counts", lambda: {"cli": 6})
    assert plain.check() == 1
    assert "cli has 6 lines that are hard to read, but may have 5" in capsys.readouterr().err
    plain.keep()
    assert json.loads(plain.KEPT.read_text()) == {"cli": 5}
