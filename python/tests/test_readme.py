"""The Python of README.md and of python/README.md does what it says: it runs as it stands there."""

import doctest
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


def test_the_examples_with_answers_run():
    pytest.importorskip("sklearn", reason="they are about scikit-learn")
    text = (ROOT / "python/README.md").read_text()
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block, {}, "python/README.md", None, 0)
        assert len(test.examples) > 5
        runner, told = doctest.DocTestRunner(), []
        runner.run(test, out=told.append)
        assert runner.failures == 0, "".join(told)


def test_nothing_says_to_install_knear_from_an_index_of_packages():
    """The name is nobody's there: what another puts under it would be installed."""
    folders = "bench", "cli", "docs", "examples", "python", "scripts"
    pages = [page for folder in folders for page in (ROOT / folder).rglob("*")]
    pages += ROOT.glob("*.md")
    seen = 0
    for page in pages:
        if page.suffix not in (".py", ".md", ".cpp", ".hpp", "") or not page.is_file():
            continue
        text = page.read_text(errors="replace")
        seen += "pip install" in text
        found = re.search(r"""pip install\b[^\n'`#]*[ "'](?<!of )knear\b(?![-/])""", text)
        from_files = found and "--no-index" in found[0]
        assert not found or from_files or page == Path(__file__), f"{page}: {found[0]}"
    assert seen > 10
