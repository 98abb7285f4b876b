"""Methods beside the exact scan: what they answer, promise and report."""

import numpy as np
import pytest

import knear


@pytest.fixture
def vectors(rng):
    centres = rng.standard_normal((20, 16))
    base = (centres[np.arange(6000) * 20 // 6000] + 0.7 * rng.standard_normal((6000, 16))).astype(
        np.float32
    )
    return base, base[rng.permutation(6000)[:200]] + np.float32(0.01)


def same(a, b):
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])


def test_threshold_heap_is_exact_and_says_what_its_sample_was_worth(vectors):
    base, queries = vectors
    exact = knear.knn(queries, base, 16)
    index = knear.Index("Flat", dim=16)
    index.add(base)
    for samples in (None, 16, 1000):
        report = {}
        same(
            knear.knn(queries, base, 16, method="threshold-heap", samples=samples, report=report),
            exact,
        )
        same(index.search(queries, 16, method="threshold-heap", samples=samples), exact)
        assert report["method"] == "threshold-heap"
        assert report["samples"] == (samples or 128)
        assert report["compression_ratio"] >= 1 and 0 < report["threshold_ratio"] <= 1
        assert report["promised_recall"] == 1 and report["certified_queries"] == 200


def test_partial_reduce_keeps_its_promise_and_names_the_uncertain(vectors):
    base, queries = vectors
    exact = knear.knn(queries, base, 50)
    index = knear.Index("Flat", dim=16)
    index.add(base)
    for search in (
        lambda **how: knear.knn(queries, base, 50, method="partial-reduce", **how),
        lambda **how: index.search(queries, 50, method="partial-reduce", **how),
    ):
        same(search(recall=1.0), exact)
        for recall in (0.2, 0.9, 0.99):
            report = {}
            distances, ids = search(recall=recall, report=report)
            assert (distances <= exact[0][:, -1:]).mean() >= recall
            assert report["promised_recall"] == recall <= report["expected_recall"]
            assert report["recall_argument"] == "analytic"
            sure = np.setdiff1d(np.arange(200), report["uncertified"])
            assert len(sure) == report["certified_queries"]
            same((distances[sure], ids[sure]), (exact[0][sure], exact[1][sure]))
    report = {}
    distances, ids = knear.knn(
        queries,
        base,
        50,
        method="partial-reduce",
        recall=0.9,
        aggregate_to_topk=False,
        report=report,
    )
    assert ids.shape == (200, report["bins"] * report["kept_per_bin"])
    kept = report["kept_per_bin"]
    knear.knn(
        queries,
        base,
        50,
        method="partial-reduce",
        recall=0.9,
        logical_rows=1_000_000,
        report=report,
    )
    assert report["kept_per_bin"] < kept


def test_what_does_not_go_together_is_refused(vectors):
    base, queries = vectors
    for how, text in [
        ({"method": "heap"}, "method must be one of"),
        ({"recall": 0.0}, r"recall must be in \(0, 1\], but is 0"),
        ({"recall": "most"}, "recall must be a number"),
        ({"method": "exact", "recall": 0.5}, "but recall is 0.5"),
        ({"samples": 40}, "samples is 40, but method is auto"),
        ({"method": "threshold-heap", "samples": 4}, "samples must be at least k = 5, but are 4"),
        ({"method": "threshold-heap", "samples": 0}, "samples must be at least 1, but is 0"),
        ({"logical_rows": 9}, "logical_rows is 9, but method is auto"),
        ({"aggregate_to_topk": False}, "aggregate is off, but method is auto"),
        ({"method": "partial-reduce", "first_pass": "direct"}, "first_pass is direct"),
    ]:
        with pytest.raises(knear.InvalidArgument, match=text):
            knear.knn(queries, base, 5, **how)
