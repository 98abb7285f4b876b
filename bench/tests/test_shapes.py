"""The thirty shapes, small: what is promised of each is true."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support import shapes

import knear

BENCH = Path(__file__).resolve().parent.parent
K = 10


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_shape_has_what_it_is_asked_for(name):
    base, queries = shapes.SHAPES[name](300, 20, seed=3)
    assert base.dtype == queries.dtype == np.float32
    assert len(base) == 300 and len(queries) == 20 and np.isfinite(base).all()
    again, _ = shapes.SHAPES[name](300, 20, seed=3)
    assert np.array_equal(base, again)


def test_there_are_thirty():
    assert len(shapes.SHAPES) == 30


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_what_promises_all_finds_all(name, metric):
    base, queries = shapes.SHAPES[name](1200, 12, seed=1)
    exact = knear.knn(queries, base, K, metric)
    for kind, effort in (
        ("Flat", {}),
        ("IVF16,Flat", {"recall": 1.0}),
        ("Graph16", {"ef": len(base)}),
    ):
        index = knear.Index(kind, dim=base.shape[1], metric=metric)
        if not index.is_trained:
            index.train(base, threads=1)
        index.add(base, threads=1)
        ids = index.search(queries, K, threads=1, **effort).ids
        assert np.array_equal(ids, exact.ids), kind
    assert shapes.recall(base, queries, exact.ids, exact, metric) == 1


def test_two_shapes_by_every_form(tmp_path):
    for package in ("faiss", "hnswlib", "scipy"):
        pytest.importorskip(package)
    figures = tmp_path / "figures.json"
    small = ["--rows", "600", "--queries", "20", "--repeat", "1", "--shapes", "circle,one far row"]
    done = subprocess.run(
        [sys.executable, BENCH / "shapes", *small, "--json", figures],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(figures.read_text())
    assert len(lines) == 12
    assert all(line["found"] == 1 for line in lines if line["form"] == "flat")
    assert {line["form"] for line in lines if line["found"] is None} == {"self-join"}
