"""knear.Index: growth, element types, what it says of itself."""

import copy
import pickle

import numpy as np
import pytest
from conftest import brute_force

import knear


def test_says_what_it_is(rng):
    index = knear.Index("Flat", dim=6, metric="cosine")
    assert (index.dim, index.metric, len(index)) == (6, "cosine", 0)
    index.add(rng.standard_normal((7, 6)).astype(np.float32))
    assert len(index) == 7
    assert repr(index) == "<knear.Index 'Flat', dim=6, metric='cosine', 7 vectors>"
    assert knear.Index("Flat", dim=1).metric == "l2"


def test_ids_count_on_over_adds(rng):
    base = rng.integers(0, 5, (90, 4)).astype(np.uint8)
    index = knear.Index("Flat", dim=4)
    for begin in range(0, 90, 30):
        index.add(base[begin : begin + 30])
        known = base[: begin + 30]
        distances, ids = index.search(base[:8], 12)
        want = brute_force(base[:8], known, 12, "l2")
        np.testing.assert_array_equal(distances, want[0])
        np.testing.assert_array_equal(ids, want[1])


def test_keeps_a_copy(rng):
    base = rng.standard_normal((20, 3)).astype(np.float32)
    index = knear.Index("Flat", dim=3)
    index.add(base)
    before = index.search(base[:2], 3)
    queries = base[:2].copy()
    base[:] = 0
    after = index.search(queries, 3)
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])


def test_the_first_rows_decide_the_element_type():
    index = knear.Index("Flat", dim=2)
    index.add(np.array([[1, 2]], np.uint8))
    index.add(np.array([[255, 0], [3, 4]], np.float32))
    assert index.search(np.array([[3, 4]], np.int8), 3)[1].tolist() == [[2, 0, 1]]
    with pytest.raises(knear.InvalidArgument, match="type f32 .* row 1 .* type u8"):
        index.add(np.array([[1, 2], [0.5, 0]], np.float32))
    assert len(index) == 3


def test_report_is_filled_anew(rng):
    base = rng.standard_normal((40, 8)).astype(np.float32)
    index = knear.Index("Flat", dim=8, metric="ip")
    index.add(base)
    report = {"old": 1}
    index.search(base[:6], 3, report=report, threads=1)
    assert "old" not in report
    assert (report["rows"], report["queries"], report["dim"], report["k"]) == (40, 6, 8, 3)
    assert (report["metric"], report["threads"], report["certified_queries"]) == ("ip", 1, 6)
    assert report["first_pass"]
    assert report["seconds"] >= 0
    knear.knn(base[:2], base, 5, "cosine", report=report)
    assert (report["queries"], report["k"], report["metric"]) == (2, 5, "cosine")


def test_copies_and_pickles_are_refused_rather_than_wrong():
    index = knear.Index("Flat", dim=2)
    for duplicate in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(index)


def test_public_functions_are_documented():
    for name in knear.__all__:
        assert getattr(knear, name).__doc__, name
    for name in ("add", "search", "dim", "metric"):
        assert getattr(knear.Index, name).__doc__, name
