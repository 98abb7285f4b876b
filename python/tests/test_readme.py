"""The README's Python does what it says: it runs as it stands there."""

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent.parent / "README.md"


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a file
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["ids"].shape == names["distances"].shape == (5, 10)
    assert names["ids"][:, 0].tolist() == [0, 1, 2, 3, 4]  # the queries are rows of the base
