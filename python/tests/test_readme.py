"""The Python of README.md and of python/README.md does what it says: it runs as it stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("readme", ["README.md", "python/README.md"])
def test_the_example_runs(readme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them writes a file
    text = (ROOT / readme).read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(code, readme, "exec"), names)
    assert names["ids"].shape == names["distances"].shape == (5, 10)
    assert names["ids"][:, 0].tolist() == [0, 1, 2, 3, 4]  # the queries are rows of the base
