"""Files that a user names are opened without being held up by a pipe."""

import ast
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from knear._regular import regular

import knear
from knear import _store_files, faiss

PACKAGE = Path(knear.__file__).parent


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return str(path)


def test_a_regular_file_is_opened_as_open_does(tmp_path):
    path = tmp_path / "a.txt"
    with regular(path, "w", encoding="utf-8") as file:
        file.write("b\u00e4r")
    with regular(path) as file:
        assert file.read() == "b\u00e4r".encode()
        assert os.get_blocking(file.fileno())
    with regular(path, "wb"):
        pass
    assert path.stat().st_size == 0
    os.umask(mask := os.umask(0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    with pytest.raises(FileNotFoundError):
        regular(tmp_path / "none")
    with pytest.raises(LookupError):
        regular(path, "w", encoding="none")


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_what_is_no_regular_file_is_refused(pipe, tmp_path, mode):
    for path in (pipe, "/dev/null"):
        with pytest.raises(OSError, match="is not a regular file"):
            regular(path, mode)
    with pytest.raises(IsADirectoryError):
        regular(tmp_path, mode)


def test_pipes_are_refused_where_indexes_of_faiss_are_read_and_written(pipe):
    index = faiss.IndexFlatL2(4)
    for work in (
        lambda: faiss.read_index(pipe),
        lambda: faiss.write_index(index, pipe),
        lambda: faiss.FileIOReader(pipe),
        lambda: faiss.write_index(index, faiss.FileIOWriter(pipe)),
    ):
        with pytest.raises(RuntimeError, match=f"{re.escape(pipe)} .*is not a regular file"):
            work()


@pytest.mark.parametrize("name", ["store.json", "store.json.tmp", "documents"])
def test_a_pipe_in_a_store_of_documents_is_refused(tmp_path, name):
    index = knear.Index("Flat", dim=2)
    index.add(np.eye(2))
    settings = dict.fromkeys(_store_files._SETTINGS) | {"factory": "Flat", "metric": "l2"}
    rows = [(0, "a", "text", {}), (1, "b", "text", {})]
    _store_files.save(tmp_path, settings, index, rows)
    assert _store_files.load(tmp_path)[2] == rows
    path = tmp_path / name
    if name == "documents":
        (path,) = tmp_path.glob("documents-*")
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(knear.IoError, match="is not a regular file") as refused:
        if name.endswith(".tmp"):
            _store_files.save(tmp_path, settings, index, rows)
        else:
            _store_files.load(tmp_path)
    assert refused.value.filename == str(path)
    with pytest.raises(knear.IoError):
        _store_files.save(path, settings, index, rows)  # the folder itself


def test_all_files_of_users_are_opened_there():
    """Others are in a folder of knear's own, or are named by the caller to be written as text."""
    own = {
        "_regular.py": 1,
        "_process.py": 1,  # of /proc
        "_index.py": 2,
        "_store_files.py": 1,  # a new file
        "faiss/tuning.py": 2,  # for gnuplot
    }
    found = {}
    for path in PACKAGE.rglob("*.py"):
        calls = (
            each for each in ast.walk(ast.parse(path.read_bytes())) if isinstance(each, ast.Call)
        )
        count = sum(isinstance(each.func, ast.Name) and each.func.id == "open" for each in calls)
        if count:
            found[path.relative_to(PACKAGE).as_posix()] = count
    assert found == own
