"""What the package asks of the system, as Linux answers and as systems that have no such words."""

import builtins
import os

import numpy as np
import pytest

from knear import _process, faiss, sklearn


@pytest.fixture(params=["as here", "as elsewhere"])
def system(request, monkeypatch):
    """`as elsewhere`: neither the processors of a process nor /proc."""
    if request.param == "as elsewhere":
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        opens = builtins.open

        def without_proc(file, *arguments, **options):
            if str(file).startswith("/proc/"):
                raise FileNotFoundError(file)
            return opens(file, *arguments, **options)

        monkeypatch.setattr(builtins, "open", without_proc)
    return request.param


def test_cores_are_counted(system):
    there = len(os.sched_getaffinity(0)) if system == "as here" else os.cpu_count()
    assert _process.cores() == there


def test_memory_is_counted(system):
    held = np.ones(1 << 24)
    assert held.nbytes < _process.resident_bytes() < 1 << 40
    assert held.nbytes < faiss.get_mem_usage_kb() * 1024 < 1 << 40


def test_packages_that_count_cores(system, monkeypatch):
    monkeypatch.setattr(faiss.base, "_threads", [])  # as before omp_set_num_threads()
    assert faiss.omp_get_max_threads() == _process.cores()
    rows = np.random.default_rng(1).standard_normal((500, 8))
    found = sklearn.NearestNeighbors(n_neighbors=1, n_jobs=-1).fit(rows).kneighbors(rows)
    np.testing.assert_array_equal(found[1][:, 0], np.arange(500))
