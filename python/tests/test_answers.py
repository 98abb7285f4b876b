"""knear.knn and knear.Index against brute force in float64, on every metric and element type."""

import numpy as np
import pytest
from conftest import brute_force

import knear

METRICS = ["l2", "ip", "cosine"]


def both(queries, base, k, metric):
    """The answers of the function and of the index; they must be the same bits."""
    distances, ids = knear.knn(queries, base, k, metric)
    index = knear.Index("Flat", dim=base.shape[1], metric=metric)
    index.add(base)
    again = index.search(queries, k)
    np.testing.assert_array_equal(again[0], distances)
    np.testing.assert_array_equal(again[1], ids)
    return distances, ids


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_every_metric_and_type(rng, metric, dtype):
    if np.dtype(dtype).kind == "f":
        base = rng.standard_normal((211, 23)).astype(dtype)
        queries = rng.standard_normal((13, 23)).astype(dtype)
    else:
        low, high = (0, 256) if dtype == "uint8" else (-128, 128)
        base = rng.integers(low, high, (211, 23)).astype(dtype)
        queries = rng.integers(low, high, (13, 23)).astype(dtype)
    distances, ids = both(queries, base, 9, metric)
    assert (distances.dtype, ids.dtype) == (np.float32, np.int64)
    want_distances, want_ids = brute_force(queries, base, 9, metric)
    np.testing.assert_array_equal(ids, want_ids)
    # Both are float64 sums rounded once to float32: the order of 23 terms moves them by less than
    # 2^-48, so that only a rounding at the very edge can differ; cosine subtracts from 1.
    np.testing.assert_allclose(distances, want_distances, rtol=2**-23, atol=2**-46)


def test_whole_numbers_are_exact(rng):
    base = rng.integers(0, 4, (300, 5)).astype(np.uint8)
    queries = rng.integers(0, 4, (20, 5)).astype(np.uint8)
    for metric in ["l2", "ip"]:
        distances, ids = both(queries, base, 300, metric)
        want = brute_force(queries, base, 300, metric)
        np.testing.assert_array_equal(distances, want[0])
        np.testing.assert_array_equal(ids, want[1])  # hundreds of ties, all by id


def test_types_mix(rng):
    base = rng.integers(0, 100, (50, 8))
    queries = rng.integers(0, 100, (4, 8))
    want = knear.knn(queries.astype(np.float32), base.astype(np.float32), 7)
    names = ["float32", "float16", "uint8", "int8"]
    for q_type in names:
        for b_type in names:
            got = knear.knn(queries.astype(q_type), base.astype(b_type), 7)
            np.testing.assert_array_equal(got[0], want[0])
            np.testing.assert_array_equal(got[1], want[1])


def test_bfloat16(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    base = rng.standard_normal((40, 16)).astype(ml_dtypes.bfloat16)
    queries = rng.standard_normal((3, 16)).astype(ml_dtypes.bfloat16)
    got = both(queries, base, 5, "cosine")
    want = knear.knn(queries.astype(np.float32), base.astype(np.float32), 5, "cosine")
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32", "int16", "uint16", "uint64", ">f4"])
def test_other_types_are_taken_where_float32_holds_them(rng, dtype):
    base = rng.integers(0, 1000, (30, 6))
    got = knear.knn(base[:4].astype(dtype), base.astype(dtype), 3)
    want = knear.knn(base[:4].astype(np.float32), base.astype(np.float32), 3)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.parametrize("metric", METRICS)
def test_padding(rng, metric):
    base = rng.standard_normal((3, 4)).astype(np.float32)
    distances, ids = both(base[:2], base, 5, metric)
    assert (ids[:, 3:] == -1).all()
    assert (distances[:, 3:] == (-np.inf if metric == "ip" else np.inf)).all()
    assert (ids[:, :3] >= 0).all()


def test_nothing_to_search():
    some, none = np.zeros((2, 4), np.float32), np.zeros((0, 4), np.float32)
    distances, ids = both(some, none, 2, "l2")
    assert (ids == -1).all()
    assert np.isinf(distances).all()
    distances, ids = both(none, some, 2, "l2")
    assert distances.shape == ids.shape == (0, 2)


def test_zero_vectors_are_at_cosine_distance_one():
    base = np.array([[0, 0], [1, 0], [-1, 0]], np.float32)
    distances, ids = knear.knn(base[:2], base, 3, "cosine")
    assert distances.tolist() == [[1, 1, 1], [0, 1, 2]]
    assert ids.tolist() == [[0, 1, 2], [1, 0, 2]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(rng, threads):
    base = rng.standard_normal((500, 33)).astype(np.float32)
    queries = rng.standard_normal((40, 33)).astype(np.float32)
    want = knear.knn(queries, base, 10, threads=1)
    got = knear.knn(queries, base, 10, threads=threads)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])
    one = [knear.knn(queries[i : i + 1], base, 10, threads=threads) for i in range(40)]
    np.testing.assert_array_equal(np.concatenate([distances for distances, _ in one]), want[0])
    np.testing.assert_array_equal(np.concatenate([ids for _, ids in one]), want[1])


def test_real_images(fashion_mnist):
    base, queries = fashion_mnist
    base, queries = base[:5000], queries[:30]
    distances, ids = both(queries, base, 10, "l2")
    want = brute_force_in_blocks(queries, base, 10)
    np.testing.assert_array_equal(distances, want[0])
    np.testing.assert_array_equal(ids, want[1])


def brute_force_in_blocks(queries, base, k):
    parts = [brute_force(queries[i : i + 1], base, k, "l2") for i in range(len(queries))]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


@pytest.mark.parametrize("metric", METRICS)
def test_filters_by_ids_and_by_bools(rng, metric):
    base = rng.standard_normal((500, 16)).astype(np.float32)
    queries = rng.standard_normal((9, 16)).astype(np.float32)
    mask = rng.random(500) < 0.3
    allowed = np.flatnonzero(mask)
    want_distances, want = knear.knn(queries, base[mask], 7, metric)
    index = knear.Index("Flat", dim=16, metric=metric)
    index.add(base)
    shuffled = rng.permutation(np.concatenate([allowed, allowed[:5]]))
    for filter in (mask, list(mask), allowed, shuffled.astype(np.uint16), shuffled.tolist()):
        report = {}
        for distances, ids in (
            knear.knn(queries, base, 7, metric, filter=filter, report=report),
            index.search(queries, 7, filter=filter),
        ):
            np.testing.assert_array_equal(ids, allowed[want])
            np.testing.assert_array_equal(distances, want_distances)
        assert (report["rows"], report["allowed_rows"]) == (500, len(allowed))
    for nothing in ([], np.zeros(500, bool)):
        assert (index.search(queries, 2, filter=nothing)[1] == -1).all()
    ids = index.search(queries, 4, filter=[3, 1])[1]
    assert sorted(ids[0].tolist()) == [-1, -1, 1, 3]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_range_search(rng, metric, dtype):
    base = (rng.random((900, 12)) * 9).astype(dtype)
    queries = (rng.random((31, 12)) * 9).astype(dtype)
    distances, ids = knear.knn(queries, base, 900, metric)
    # Halfway between two distances of a query, so that rounding to float32 decides nothing.
    near = np.unique(distances[3].astype(np.float64))
    near = near if metric != "ip" else near[::-1]
    radius = (near[7] + near[8]) / 2
    index = knear.Index("Flat", dim=12, metric=metric)
    index.add(base)
    mask = rng.random(900) < 0.5
    for filter in (None, mask):
        for begin, found, rows in (
            knear.range_search(queries, base, radius, metric, filter=filter),
            index.range_search(queries, radius, filter=filter, threads=2),
        ):
            assert (begin.dtype, found.dtype, rows.dtype) == (np.int64, np.float32, np.int64)
            for i in range(31):
                inside = distances[i] >= radius if metric == "ip" else distances[i] <= radius
                if filter is not None:
                    inside &= mask[ids[i]]
                np.testing.assert_array_equal(rows[begin[i] : begin[i + 1]], ids[i][inside])
                np.testing.assert_array_equal(found[begin[i] : begin[i + 1]], distances[i][inside])
    assert index.range_search(queries[:0], radius)[0].tolist() == [0]
    nothing = knear.range_search(queries, base, 1e9 if metric == "ip" else -2.0, metric)
    assert nothing[0].tolist() == [0] * 32
    with pytest.raises(knear.InvalidArgument, match="radius must be a number, but is nan"):
        index.range_search(queries, float("nan"))
    with pytest.raises(knear.InvalidArgument, match="radius must be a number, but is 'far'"):
        index.range_search(queries, "far")


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_self_join_is_a_search_for_every_row_without_the_row(metric):
    rng = np.random.default_rng(3)
    base = rng.standard_normal((700, 16)).astype(np.float32)
    base[5] = base[600]  # copies are rows like any other
    report = {}
    first_pass = "auto" if metric == "ip" else "prefix"
    distances, ids = knear.self_join(base, 7, metric, first_pass=first_pass, report=report)
    assert report.get("joined", False) == (metric != "ip")
    assert report["k"] == 7
    all_distances, all_ids = knear.knn(base, base, 8, metric)
    for row in range(len(base)):
        others = all_ids[row] != row
        if others.all():
            others[-1] = False
        np.testing.assert_array_equal(ids[row], all_ids[row][others])
        np.testing.assert_array_equal(distances[row], all_distances[row][others])


def test_choices_change_no_answer_and_are_reported():
    rng = np.random.default_rng(4)
    base = rng.standard_normal((3000, 40)).astype(np.float32)
    queries = rng.standard_normal((50, 40)).astype(np.float32)
    expected = knear.knn(queries, base, 40)
    index = knear.Index("Flat", dim=40)
    index.add(base)
    for choices in (
        {"group": 4, "parts": 2},
        {"group": 1},
        {"guess": False},
        {"tile": 2},
        {"refine": True},
        {"refine": False},
        {},
        None,
    ):
        for search in (
            lambda **rest: knear.knn(queries, base, 40, **rest),
            lambda **rest: index.search(queries, 40, **rest),
        ):
            report = {}
            answer = search(choices=choices, report=report)
            np.testing.assert_array_equal(answer[1], expected[1])
            np.testing.assert_array_equal(answer[0], expected[0])
            if choices and "group" in choices:
                assert report["group"] == choices["group"]
            if choices == {"tile": 2}:
                assert 0 < report["tile_rows"] < 1000
            if choices and "refine" in choices:
                assert (report["refined_per_query"] > 0) == choices["refine"]
            if choices == {"guess": False}:
                assert not report["guessed"]
    report = {}
    chosen = {"columns": 16, "clusters": 30}
    answer = knear.knn(queries, base, 40, first_pass="prefix", choices=chosen, report=report)
    np.testing.assert_array_equal(answer[1], expected[1])
    assert (report["prefix_columns"], report["clusters"]) == (16, 30)
    for wrong in (
        {"group": 3},
        {"columns": 16},
        {"color": 1},
        {"tile": 0},
        {"parts": 0},
        "group=1",
    ):
        with pytest.raises(knear.InvalidArgument):
            knear.knn(queries, base, 3, choices=wrong)


def test_ids_are_of_numpys_own_type(rng):
    base = rng.standard_normal((3000, 4)).astype(np.float32)
    index = knear.Index("Flat", dim=4)
    index.add(base)
    for ids in (
        knear.knn(base, base, 3).ids,  # of the library's memory
        knear.knn(base[:2], base, 3).ids,  # few: of NumPy's
        knear.range_search(base[:2], base, 1.0).begin,
        knear.select_k(base, 2)[1],
        knear.KMeans(4).train(base).assign(base)[1],
        index.ids,
    ):
        assert ids.dtype.char == np.dtype(np.int64).char


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_an_infinite_radius_is_beyond_everything_or_before_it(metric):
    x = np.random.default_rng(1).standard_normal((60, 5))
    far = np.vstack([x, x[:3] * 1e38])  # whose squared distances are beyond float32
    everything = -np.inf if metric == "ip" else np.inf
    for base in (x, far, x.astype(np.float32)):
        indexes = [
            knear.Index("Flat", dim=5, metric=metric),
            knear.Index("IVF2,Flat", dim=5, metric=metric),
        ]
        for index in indexes:
            index.is_trained or index.train(base)
            index.add(base)
        for search in (
            lambda radius, base=base: knear.range_search(x[:4], base, radius, metric),
            *(
                lambda radius, i=i: i.range_search(
                    x[:4], radius, **({"probes": 2} if i.lists else {})
                )
                for i in indexes
            ),
        ):
            begin, distances, ids = search(everything)
            assert begin.tolist() == [0, *(len(base) * np.arange(1, 5)).tolist()]
            for a, b in zip(begin[:-1], begin[1:], strict=True):
                assert sorted(ids[a:b].tolist()) == list(range(len(base)))
            assert len(search(-everything).ids) == 0
