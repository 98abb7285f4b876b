"""The set `text`: what is read of an archive, how it is divided, its vectors; and scripts/demo."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[1]
SCRIPTS = BENCH.parent / "scripts"
sys.path.insert(0, str(BENCH))
from support import sets, text

ARCHIVE = """\
Package: plotter
Version: 2
Description: draw graphs of functions
 This program draws graphs of mathematical functions on the screen
 or   into a file.
 .
 Features:
 .
   * curves in two dimensions, surfaces in three, and contours
   * axes with a logarithm

Package: chess
Source: games (1.5)
Section: games
Description: play chess against the computer
 This paragraph stands in the descriptions of two packages alike.

Package: plotter
Version: 1
Description: an older version of the same package

Package: undescribed
Version: 1

Package: board
Description: play draughts on a board of ten by ten
 This paragraph stands in the descriptions of two packages alike.
"""

lacks_vectors = [name for name in text.PACKAGES if importlib.util.find_spec(name) is None]
needs_vectors = pytest.mark.skipif(
    bool(lacks_vectors), reason=f"no Python package {', '.join(lacks_vectors)}"
)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    file = tmp_path / "archive"
    file.write_text(ARCHIVE)
    monkeypatch.setenv("KNEAR_ARCHIVE", str(file))
    monkeypatch.setenv("KNEAR_CACHE", str(tmp_path / "cache"))
    return file


def data(*arguments):
    command = [sys.executable, str(BENCH / "data"), "text", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_packages_of_an_archive(archive, tmp_path):
    packages = text.records(tmp_path, long=True)
    assert [source for source, _ in text.titles(packages)] == ["board", "games", "plotter"]
    assert text.titles(packages)[1][1] == "chess: play chess against the computer"
    assert text.titles(packages)[2][1] == "plotter: draw graphs of functions"  # the first version
    assert text.paragraphs(packages) == [
        ("board", "board: This paragraph stands in the descriptions of two packages alike."),
        (
            "plotter",
            "plotter: This program draws graphs of mathematical functions on the screen "
            "or into a file.",
        ),
        (
            "plotter",
            "plotter: * curves in two dimensions, surfaces in three, and contours * axes with a "
            "logarithm",
        ),
    ]


def test_lists_of_translations_are_read_too():
    lines = ["Package: a", "Description-md5: 0", "Description-en: title", " " + 50 * "x", ""]
    assert list(text.parse(lines)) == [text.Record("a", "title", (50 * "x",))]
    assert list(text.parse(lines[:-1])) == [text.Record("a", "title", (50 * "x",))]
    short = [text.Record("b", "title"), text.Record("a", "first title")]
    assert text.by_name([*short, *text.parse(lines)]) == [
        text.Record("a", "first title", (50 * "x",)),
        text.Record("b", "title"),
    ]


def test_lengths_of_paragraphs():
    sizes = [text.SHORTEST - 1, text.SHORTEST, text.LONGEST, text.LONGEST + 1]
    lines = [line for size in sizes for line in (" " + size * "x", " .")]
    assert [len(paragraph) for paragraph in text.split_paragraphs(lines)] == sizes[1:3]
    assert text.split_paragraphs([]) == ()


def test_queries_are_of_sources_that_are_not_in_the_base():
    texts = [(f"source{i % 40}", f"text {i}") for i in range(100)]
    base, queries = text.choose(texts, 1000, 15, seed=1)
    source_of = {line: source for source, line in texts}
    assert len(queries) == 15
    assert not {source_of[line] for line in base} & {source_of[line] for line in queries}
    assert len(set(base + queries)) == len(base) + 15 > 90
    assert text.choose(texts, 1000, 15, seed=1) == (base, queries)
    assert text.choose(texts, 1000, 15, seed=2) != (base, queries)
    assert text.choose(texts, 20, 15, seed=1) == (base[:20], queries)
    with pytest.raises(text.TextError, match="has 100 texts, too few for 100 queries and a base"):
        text.choose(texts, 1, 100, seed=1)


def test_a_machine_without_apt(monkeypatch, tmp_path):
    monkeypatch.delenv("KNEAR_ARCHIVE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(text.TextError, match="no 'apt-cache' on this machine"):
        text.records(tmp_path, long=False)


@needs_vectors
def test_vectors_are_means_of_tokens(archive):
    embed = text.Embedding()
    lines = ["draw graphs of functions", "a", "Grüße, 世界"] * 100
    vectors = embed(lines)
    assert (vectors.shape, vectors.dtype) == ((300, text.DIM), np.float32)
    for line, vector in zip(lines[:3], vectors[-3:], strict=True):
        tokens = embed.tokenizer.encode(line, add_special_tokens=False).ids
        mean = embed.vectors[tokens].astype(float).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    plot, chess = embed(["plot mathematical curves", "games with pawns and bishops"])
    names = [line for _, line in text.titles(text.records(Path(), long=False))]
    near = [names[int(np.argmax(embed(names) @ vector))] for vector in (plot, chess)]
    assert near == ["plotter: draw graphs of functions", "chess: play chess against the computer"]
    with pytest.raises(text.TextError, match="'' has no word"):
        embed(["something", ""])


@needs_vectors
def test_the_set_is_made_once_with_its_texts(archive, tmp_path):
    first = data("--rows", 2, "--queries", 1)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count(" made ") == 4
    folder = Path(first.stdout.split()[0]).parent
    assert data("--rows", 2, "--queries", 1).stdout == first.stdout.replace(" made ", " checked ")
    about = json.loads((folder / "about.json").read_text())
    assert about["texts of the archive"] == 3  # titles suffice
    lines = (folder / "base.txt").read_text().splitlines()
    lines += (folder / "queries.txt").read_text().splitlines()
    assert sorted(lines) == [line for _, line in text.titles(text.records(tmp_path, long=False))]
    base = np.load(folder / "base.npy")
    assert base.shape == (2, text.DIM)
    np.testing.assert_allclose(np.linalg.norm(base, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(base, text.Embedding()(lines[:2]))

    (folder / "base.txt").write_text("other\n")
    again = data("--rows", 2, "--queries", 1)
    assert "base texts in" in again.stderr and "damaged" in again.stderr
    assert again.stdout == first.stdout

    more = data("--rows", 3, "--queries", 1)  # paragraphs too
    about = json.loads((Path(more.stdout.split()[0]).parent / "about.json").read_text())
    assert (about["rows that were asked for"], about["texts of the archive"]) == (3, 6)
    # Another archive is another set.
    archive.write_text(ARCHIVE.replace("chess", "go"))
    other = data("--rows", 2, "--queries", 1)
    assert other.stdout.count(" made ") == 4 and other.stdout != first.stdout
    with pytest.raises(sets.SetError, match="has 6 texts, too few for 10,000 queries"):
        sets.load("text")


@needs_vectors
def test_bad_archives(archive, monkeypatch):
    few = data("--rows", 10, "--queries", 100)
    assert few.returncode == 1
    assert few.stderr.splitlines()[-1] == (
        "data: text: the archive has 6 texts, too few for 100 queries and a base"
    )
    archive.write_text("nothing\n")
    assert "has no package with a description" in data("--rows", 1).stderr
    monkeypatch.setenv("KNEAR_ARCHIVE", str(archive.with_name("none")))
    none = data("--rows", 1)
    assert none.returncode == 1 and "none, which cannot be read" in none.stderr
    assert len(none.stderr.splitlines()) == 1


def demo(*arguments):
    return subprocess.run(
        [str(SCRIPTS / "demo"), *arguments], capture_output=True, text=True, check=False
    )


def test_arguments_of_the_demo():
    shown = demo("--help")
    assert shown.returncode == 0 and '--ask "draw graphs of functions"' in shown.stdout
    for arguments, expected in (
        (["--ask"], "--ask needs a sentence"),
        (["--ask", " "], "--ask is ' ', but needs a sentence"),
        (
            ["--ask=word", "--report", "r.html"],
            "--ask takes no other arguments, but got '--report'",
        ),
        (["--text", "--base", "b.npy"], "--text and --base exclude each other"),
        (["--data=here", "--text"], "--text and --data exclude each other"),
    ):
        refused = demo(*arguments)
        assert (refused.returncode, refused.stderr) == (1, f"demo: {expected}\n")


def test_steps(tmp_path):
    def run(commands):
        prelude = f"set -euo pipefail; steps=trial; . '{SCRIPTS / 'steps.sh'}'; "
        return subprocess.run(
            ["bash", "-c", prelude + commands],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    done = run("f() { echo hidden; value=3; }; step one f; shown_step two echo $value; steps_end")
    assert (done.returncode, done.stdout) == (0, "3\n")
    lines = [line.rsplit(" ", 2)[0] for line in done.stderr.splitlines()]
    assert lines == ["trial: one:", "trial: two:", "trial: all steps:"]
    assert (tmp_path / "build" / "log" / "trial-1.log").read_text() == "hidden\n"
    failed = run("step one bash -c 'echo why; exit 7'; echo not reached")
    assert (failed.returncode, failed.stdout) == (7, "")
    assert failed.stderr.startswith("why\ntrial: one failed after ")
    assert failed.stderr.endswith("its output is in build/log/trial-1.log\n")


@needs_vectors
def test_a_sentence_is_answered(tmp_path):
    presets = [BENCH.parent / "build" / preset / "bin" / "knear" for preset in ("dev", "release")]
    built = [Path(os.environ["KNEAR_PROGRAM"])] if "KNEAR_PROGRAM" in os.environ else presets
    program = next((each for each in built if each.exists()), None)
    if program is None:
        pytest.skip("the program knear is not built")
    source = random.Random(1)
    words = ["fast", "small", "free", "secure", "modern", "tool", "library", "program", "daemon"]
    records = [ARCHIVE]
    for i in range(3100):  # 3,000 of them are queries
        title = " ".join(source.choices(words, k=5))
        records.append(f"Package: p{i}\nDescription: {title}\n")
    # Some sentences of the small archive may be queries: one that comes often is not missed.
    records += [f"Package: draw{i}\nDescription: draw graphs of functions\n" for i in range(1000)]
    (tmp_path / "archive").write_text("\n".join(records))
    variables = {"KNEAR_ARCHIVE": str(tmp_path / "archive"), "KNEAR_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, SCRIPTS / "demo_text.py"]

    def run(*arguments):
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, **variables, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )

    answer = run("ask", program, "graphs of functions, to draw")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == 10
    assert all(line[:2] in ("0.", "1.") and "draw graphs of functions" in line for line in lines)
    assert "the 10 nearest of " in answer.stderr and "texts, exactly" in answer.stderr
    paths = run("paths")
    assert [Path(line).name for line in paths.stdout.splitlines()] == [
        "base.npy",
        "queries.npy",
        "base.txt",
        "queries.txt",
    ]
    assert all(Path(line).exists() for line in paths.stdout.splitlines())
