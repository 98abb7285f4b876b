"""What scripts/gpu_check leaves in its folder, even if it is killed. Its programs are pretended."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "table.txt", "progress.txt", "tests.json", "gpu_check.json", "peers.jsonl", "logs.tar.gz",
}  # fmt: skip

KNEAR = """#!/bin/sh
[ -n "$PRETEND_GPU" ] && echo '  cuda:0     some GPU' || echo '  no GPU     there is none'
"""
# Writes a figure every tenth of a second, as the real one does: the file is replaced in one step.
KNEAR_GPU = f"""#!{sys.executable}
import json, os, sys, time
words = sys.argv[1:]
def value(name):
    return words[words.index(name) + 1] if name in words else None
if not os.environ.get("PRETEND_GPU"):
    print("no GPU: there is none")
    sys.exit(3)
kind = "tests" if "--tests-only" in words else "benches"
found = []
for number in range(int(os.environ.get("PRETEND_FIGURES", "3"))):
    found.append({{"name": f"{{kind}} {{number}}", "what": "x", "seconds": 1.0}})
    print("found", number, file=sys.stderr, flush=True)
    if value("--json"):
        with open(value("--json") + ".part", "w") as file:
            json.dump({{"device": {{"name": "some GPU"}}, "benches": found}}, file)
        os.rename(value("--json") + ".part", value("--json"))
    time.sleep(0.1)
if os.environ.get("PRETEND_HANG"):
    time.sleep(1000)
if value("--targets"):
    open(value("--targets"), "w").write("the target of knear_gpu\\n")
print(f"{{len(found)}} tests, 0 failed")
sys.exit(int(os.environ.get("PRETEND_STATUS", "0")))
"""
SANITIZER = """#!/bin/bash
[ "$1" = --help ] && { echo ' --track-stream-ordered-races arg'; exit; }
echo "$*" >>"${0%/*}/sanitizer.words"
while [ "${1%knear_gpu}" = "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def check(tmp_path):
    """Runs gpu_check of a copy of the sources that it needs, in a process group of its own."""
    for path in ["scripts/gpu_check", "bench/gpu/compare.py", "bench/gpu/peers.py",
                 "python/tests/gpu_arrays.py"]:  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    programs, tools = tmp_path / "prebuilt" / "bin", tmp_path / "tools"
    for folder, name, text in [
        (programs, "knear", KNEAR),
        (programs, "knear_gpu", KNEAR_GPU),
        (tools, "compute-sanitizer", SANITIZER),
    ]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    # None of them is to be found, whatever this machine has.
    for name in ("torch", "cupy", "jax", "cuvs", "numba"):
        (tools / f"{name}.py").write_text("raise ImportError('none here')\n")
    (tmp_path / "prebuilt" / "built.txt").write_text("a commit\n")

    def start(*words, **environment):
        names = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(tools)}
        return subprocess.Popen(
            [str(tmp_path / "scripts/gpu_check"), "--prebuilt", str(tmp_path / "prebuilt"),
             "--out", str(tmp_path / "results"), *words],
            env={"HOME": str(tmp_path), **names, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    return start


def finish(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def names_in(folder):
    assert not [path for path in folder.iterdir() if path.is_dir()]
    return {path.name for path in folder.iterdir()}


def test_without_a_gpu_it_says_so_and_leaves_its_files(check, tmp_path):
    status, out, err = finish(check())
    assert status == 3, err
    assert names_in(tmp_path / "results") == {"table.txt", "progress.txt", "logs.tar.gz"}
    table = (tmp_path / "results/table.txt").read_text()
    assert out == table
    assert "no GPU here: what needs none was done" in table
    assert "programs built before: a commit" in table
    assert "skipped compute-sanitizer: no GPU" in table
    assert "skipped torch, CuPy, JAX and cuVS: no GPU" in table
    assert (tmp_path / "results/progress.txt").read_text() == err
    with tarfile.open(tmp_path / "results/logs.tar.gz") as logs:
        assert "logs/info.txt" in logs.getnames()


def test_three_calls_fill_one_folder(check, tmp_path):
    gpu = {"PRETEND_GPU": "1"}
    results = tmp_path / "results"
    status, out, err = finish(check("tests", **gpu))
    assert status == 0, err
    assert "3 tests, 0 failed" in out
    assert len(json.loads((results / "tests.json").read_text())["benches"]) == 3

    status, out, err = finish(check("benches", **gpu))
    assert status == 0, err
    assert "the target of knear_gpu" in out
    assert "not measured in this run" in out  # the targets that name torch
    assert len(json.loads((results / "gpu_check.json").read_text())["benches"]) == 3

    status, out, err = finish(check("sanitizer", "python", "peers", **gpu))
    assert status == 0, err
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        assert f"compute-sanitizer {tool}: no error in 3 tests\n" in out
    words = (tmp_path / "tools/sanitizer.words").read_text().splitlines()
    assert "--track-stream-ordered-races all" in words[0]
    assert not [line for line in words[1:] if "--track-stream" in line]
    assert all("--few" in line and "--seconds" in line for line in words)
    for peer in ("torch", "cupy", "jax", "cuvs"):
        assert f"skipped {peer}: {peer} can't be imported: none here" in out
    assert "skipped the Python module" in out
    assert names_in(results) <= FILES
    assert {"tests.json", "gpu_check.json"} <= names_in(results)


@pytest.mark.parametrize("figures", [1, 4, 9])
def test_a_call_that_is_killed_has_left_its_figures(check, tmp_path, figures):
    process = check("benches", PRETEND_GPU="1", PRETEND_FIGURES="30")
    file, progress = (tmp_path / "results" / name for name in ("gpu_check.json", "progress.txt"))
    deadline = time.monotonic() + 50
    while time.monotonic() < deadline:
        if file.exists() and len(json.loads(file.read_text())["benches"]) >= figures:
            break
        time.sleep(0.01)
    while f"found {figures - 1}\n" not in progress.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    kill_session(process.pid)
    process.communicate()
    assert len(json.loads(file.read_text())["benches"]) >= figures
    assert f"found {figures - 1}\n" in progress.read_text()
    assert "some GPU" in (tmp_path / "results/table.txt").read_text()
    assert len(names_in(tmp_path / "results")) <= 8


def kill_session(leader):
    """All processes of a session, at once: nothing of them can tidy up."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(path.read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            pass


@pytest.mark.parametrize(
    ("status", "line"),
    [(1, "3 tests"), (5, "FAILED the tests: time was over"), (139, "FAILED the tests: status 139")],
)
def test_a_failure_is_one_of_the_call(check, status, line):
    found, out, err = finish(check("tests", PRETEND_GPU="1", PRETEND_STATUS=str(status)))
    assert found == 1, err
    assert line in out


def test_what_hangs_is_stopped_in_time(check, tmp_path):
    begin = time.monotonic()
    status, out, _ = finish(check("--seconds", "14", "tests", PRETEND_GPU="1", PRETEND_HANG="1"))
    assert status == 1
    assert "stopped the tests after" in out
    assert time.monotonic() - begin < 40
    assert len(json.loads((tmp_path / "results/tests.json").read_text())["benches"]) == 3


@pytest.mark.parametrize(
    "words", [["testes"], ["--seconds", "x"], ["--prebuilt", "/nowhere"], ["--build", "x", "tests"]]
)
def test_words_that_it_does_not_know(check, words):
    status, out, err = finish(check(*words))
    assert (status, out) == (2, "")
    assert err.startswith("gpu_check: ")
