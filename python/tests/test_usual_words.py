"""What people type first, as they know it from other libraries."""

import pickle
import threading

import numpy as np
import pytest

import knear


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((300, 8), dtype=np.float32)


@pytest.mark.parametrize(
    ("word", "metric"),
    [
        ("euclidean", "l2"),
        ("sqeuclidean", "l2"),
        ("L2", "l2"),
        ("dot", "ip"),
        ("dot_product", "ip"),
        ("inner_product", "ip"),
        ("IP", "ip"),
        ("angular", "cosine"),
        ("cosinesimil", "cosine"),
        ("cosine_similarity", "cosine"),
        ("Cosine", "cosine"),
        ("manhattan", "l1"),
        ("cityblock", "l1"),
    ],
)
def test_other_words_for_a_metric(x, word, metric):
    index = knear.Index("Flat", dim=8, metric=word)
    assert index.metric == metric
    index.add(x)
    wanted = knear.knn(x[:5], x, 4, metric)
    for found in (index.search(x[:5], 4), knear.knn(x[:5], x, 4, word)):
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.distances, wanted.distances)


def test_words_that_are_no_metric(x):
    for word in ("euclid", "", "l2 "):
        text = f"metric must be one of l2, ip, cosine, l1, hamming, but is '{word}'"
        with pytest.raises(knear.InvalidArgument, match=text):
            knear.knn(x[:1], x, 1, word)


def test_the_number_of_vectors_and_the_text_of_an_index(x):
    index = knear.Index("Flat", dim=8)
    assert (index.ntotal, len(index)) == (0, 0)
    for _ in range(4):
        index.add(x)
    assert (index.ntotal, len(index)) == (1200, 1200)
    text = repr(index)
    assert text.startswith("<knear.Index 'Flat', dim=8, metric='l2', 1,200 vectors, ")
    assert text.endswith(" kB>")
    with pytest.raises(AttributeError):
        index.ntotal = 5


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_499, "999 kB"), (10**6, "1 MB")],
)
def test_bytes_as_people_read_them(size, text):
    assert knear._results.bytes_shown(size) == text


def test_ten_neighbours_unless_told_otherwise(x):
    index = knear.Index("Flat", dim=8)
    index.add(x)
    assert index.search(x[:3]).ids.shape == (3, 10)


@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat", "Graph16", "SQ8"])
def test_one_vector_has_one_answer(x, kind):
    index = knear.Index(kind, dim=8)
    index.train(x) if not index.is_trained else None
    index.add(x)
    how = {"IVF4,Flat": {"probes": 4}, "Graph16": {"ef": 40}}.get(kind, {})
    wanted = index.search(x[7:8], 5, **how)
    for q in (x[7], x[7].tolist(), x[7].astype(np.float64), x[7:8].repeat(2, 0)[::2][0]):
        found = index.search(q, 5, **how)
        assert found.ids.shape == found.distances.shape == (5,)
        np.testing.assert_array_equal(found.ids, wanted.ids[0])
        np.testing.assert_array_equal(found.distances, wanted.distances[0])
        assert found.plan["queries"] == 1
        assert found.certified.tolist() == wanted.certified.tolist()


def test_one_vector_without_an_index(x):
    found, wanted = knear.knn(x[3], x, 5), knear.knn(x[3:4], x, 5)
    assert found.ids.tolist() == wanted.ids[0].tolist()
    assert found.distances.tolist() == wanted.distances[0].tolist()
    begin, distances, ids = knear.range_search(x[3], x, 9.0)
    many = knear.range_search(x[3:4], x, 9.0)
    assert begin.tolist() == many.begin.tolist() and len(begin) == 2
    assert (distances.tolist(), ids.tolist()) == (many.distances.tolist(), many.ids.tolist())
    index = knear.Index("Flat", dim=8)
    index.add(x)
    assert index.range_search(x[3], 9.0).ids.tolist() == ids.tolist()


def test_one_vector_and_its_arrays(x):
    index = knear.Index("Flat", dim=8)
    index.add(x)
    out = np.empty(5, np.float32), np.empty(5, np.int64)
    found = index.search(x[9], 5, out=out)
    assert out[1].tolist() == index.search(x[9], 5).ids.tolist() == found.ids.tolist()
    assert out[0].tolist() == found.distances.tolist()
    with pytest.raises(knear.InvalidArgument, match=r"out: distances must be \(5,\)"):
        index.search(x[9], 5, out=(np.empty((1, 5), np.float32), np.empty((1, 5), np.int64)))
    with pytest.raises(knear.ShapeMismatch, match="3 columns"):
        index.search([1.0, 2.0, 3.0], 5)
    with pytest.raises(knear.InvalidArgument, match="the array has 3 dimensions"):
        index.search(x[None, :2], 5)
    one = knear.Index("Flat", dim=1)
    one.add(np.arange(5.0)[:, None])
    assert one.search([3.2], 1).ids.tolist() == [3]
    with pytest.raises(knear.ShapeMismatch):
        one.search([3.2, 1.0], 1)  # one vector of two columns, not two vectors


def test_results_of_one_vector_as_a_table(x):
    pytest.importorskip("pyarrow")
    index = knear.Index("Flat", dim=8)
    index.add(x)
    assert index.search(x[2], 3).to_arrow().to_pydict() == (
        index.search(x[2:3], 3).to_arrow().to_pydict()
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int8])
def test_vectors_of_what_was_found(dtype):
    x = np.random.default_rng(2).integers(0, 100, (50, 6)).astype(dtype)
    index = knear.Index("Flat", dim=6)
    index.add(x, ids=np.arange(50) * 3)
    found = index.search(x[:4].astype(np.float32), 7, return_vectors=True)
    assert found.vectors.dtype == dtype
    np.testing.assert_array_equal(found.vectors, x[found.ids // 3])
    one = index.search(x[0].astype(np.float32), 7, return_vectors=True)
    np.testing.assert_array_equal(one.vectors, x[one.ids // 3])
    assert index.search(x[:4].astype(np.float32), 7).vectors is None
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.vectors, found.vectors)
    other = found._replace(ids=found.ids + 1)
    np.testing.assert_array_equal(other.vectors, found.vectors)


def test_places_without_a_neighbour_have_zeros():
    index = knear.Index("Flat", dim=2)
    index.add(np.array([[1.0, 2.0]]))
    found = index.search(np.ones((3, 2)), 2, return_vectors=True)
    assert found.vectors.tolist() == [[[1.0, 2.0], [0.0, 0.0]]] * 3
    assert index.search(np.ones((0, 2)), 2, return_vectors=True).vectors.shape == (0, 2, 2)


def test_vectors_while_others_are_removed(x):
    """Where an id is not there any more, the answer is made again."""
    index = knear.Index("Flat", dim=8)
    index.add(x)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            index.remove(np.arange(100))
            index.add(x[:100], ids=np.arange(100))

    worker = threading.Thread(target=change)
    worker.start()
    try:
        for _ in range(300):
            found = index.search(x[:20], 5, return_vectors=True)
            np.testing.assert_array_equal(found.vectors, x[found.ids])
    finally:
        stop.set()
        worker.join()


def test_load(tmp_path, x):
    index = knear.Index("Flat", dim=8)
    index.add(x)
    index.save(tmp_path / "a.knear")
    assert knear.load(tmp_path / "a.knear", replicas=2).replicas == 2
    with pytest.raises(knear.IoError, match="none.knear"):
        knear.load(tmp_path / "none.knear")
