"""The tutorials of docs/tutorials do what they say: every `>>>` of theirs is run and compared."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

PAGES = sorted(Path(__file__).resolve().parents[2].glob("docs/tutorials/*.md"))
TUTORIALS = [page for page in PAGES if page.stem != "service"]  # tests/readme_test.sh runs that one


def examples(text: str) -> str:
    """`text` without all that is not in a block of Python, with the same line numbers."""
    inside, lines = False, []
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            line = ""
        lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page):
    text = page.read_text()
    if "sklearn" in text:
        pytest.importorskip("sklearn", reason="the tutorial is about scikit-learn's digits")
    if "wordllama" in text:
        for package in ("wordllama", "tokenizers", "safetensors"):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"the tutorial needs {package} (scripts/setup --text)")
    test = doctest.DocTestParser().get_doctest(examples(text), {}, page.stem, str(page), 0)
    assert len(test.examples) == len(re.findall(r"^>>>", text, re.MULTILINE)) > 5
    runner = doctest.DocTestRunner()
    told = []
    runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


def test_there_are_tutorials():
    assert len(TUTORIALS) >= 7
