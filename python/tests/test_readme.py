"""The Python of README.md and of python/README.md does what it says: it runs as it stands there."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import knear

ROOT = Path(__file__).resolve().parent.parent.parent


def python_of(page: str) -> str:
    """The one block of Python of a page."""
    text = (ROOT / page).read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return code


def test_the_example_of_the_first_page_prints_what_it_shows(capsys):
    pytest.importorskip("sklearn", reason="its vectors are made by scikit-learn")
    text = (ROOT / "README.md").read_text()
    exec(compile(python_of("README.md"), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert f"```\n\n    {printed}\n" in text


def test_the_first_page_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_the_errors_of_the_questions_are_what_knear_says():
    page = (ROOT / "docs/faq.md").read_text()
    x = np.random.default_rng(1).random((2000, 16), dtype=np.float32)
    lists = knear.Index("IVF8,Flat", dim=16)
    calls = [lambda: lists.add(x), lambda: knear.Index("Flat", dim=784).search(x, k=3)]
    calls += [lambda: knear.knn(x, x, k=100, memory="1K")]
    calls += [lambda: lists.search(x, k=3)]
    for number, call in enumerate(calls):
        if number == 3:
            lists.train(x)
            lists.add(x)
        with pytest.raises(knear.Error) as caught:
            call()
        said = re.sub(r"at least \d+.*", "at least ...", str(caught.value))
        assert f"`{said}`" in page


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes files
    names = {}
    exec(compile(python_of("python/README.md"), "python/README.md", "exec"), names)
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
