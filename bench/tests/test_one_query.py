"""bench/one_query races knear beside what is installed, and says what is not."""

import importlib.machinery
import importlib.util
import json

import numpy as np
import pytest
from test_bench import BENCH, run

pytest.importorskip("knear")
pytest.importorskip("faiss")


def program():
    loader = importlib.machinery.SourceFileLoader("one_query", str(BENCH / "one_query"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("one_query", loader))
    loader.exec_module(module)
    return module


def test_a_small_race(tmp_path):
    data = tmp_path / "sift-5k"
    data.mkdir()
    rows = np.random.default_rng(1).integers(0, 255, (2040, 132), dtype=np.uint8)
    rows[:, :4] = np.frombuffer(np.int32(128).tobytes(), np.uint8)
    rows[:2000].tofile(data / "base.bvecs")
    rows[2000:].tofile(data / "queries.bvecs")
    out = tmp_path / "out.json"
    ran = run(
        "one_query",
        *("--sets", "sift-5k", "--systems", "knear", "faiss", "--repeat", "2"),
        *("--rows", "2000", "--queries", "40", "--json", str(out)),
        cache=tmp_path,
        data=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    [result] = json.loads(out.read_text())["results"]
    assert result["rows"] == 2000 and set(result["systems"]) == {"knear", "faiss"}
    for system in result["systems"].values():
        recalls = [point["recall"] for point in system["efforts"]]
        assert recalls[-1] >= 0.99 or len(recalls) == 12
        assert all(len(point["seconds"]) == 2 for point in system["efforts"])
    assert "sift-5k: 2,000 x 128" in ran.stdout


def test_times_at_a_recall_lie_between_those_of_two_efforts():
    at_recall = program().at_recall
    points = [(0.8, 1.0), (0.9, 2.0), (0.99, 4.0)]
    assert at_recall(points, 0.9) == pytest.approx(2.0)
    assert at_recall(points, 0.968377) == pytest.approx(3.0, abs=1e-4)  # in the middle, by log
    assert at_recall(points, 0.5) == 1.0
    assert at_recall(points, 0.995) is None
