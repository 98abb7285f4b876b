"""k-NN graphs and smoothest paths: answers beside self_join and SciPy, arguments, files."""

import copy
import multiprocessing
import os
import pickle
import signal
import time

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

import knear
from knear import _graphs

rng = np.random.default_rng(19)
X = rng.random((400, 6)).astype(np.float32)
X[50] = X[7]
APART = np.concatenate([X[:200], X[200:] + 10])


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_graph_is_the_self_join(metric, dtype):
    x = X.astype(dtype)
    graph = knear.knn_graph(x, 7, metric)
    near = knear.self_join(x, 7, metric)
    assert np.array_equal(graph.ids, near.ids)
    assert np.array_equal(graph.distances, near.distances)
    assert (graph.ids.dtype, graph.distances.dtype) == (np.int64, np.float32)
    assert graph.metric == metric
    assert graph.promised_recall == 1
    assert graph.plan["rows"] == 400
    graph.check_base(x)
    distances, ids = graph
    assert ids is graph.ids


def test_arrays_outlive_the_graph_and_cannot_be_written_to():
    ids = knear.knn_graph(X, 3).ids
    assert ids.max() < 400
    with pytest.raises(ValueError):
        ids[0, 0] = 5


@pytest.mark.parametrize("closure", ["union", "mutual"])
def test_csr_is_the_closure(closure):
    graph = knear.knn_graph(X, 5)
    csr = knear.knn_graph(X, 5, as_csr=closure)
    rows = np.repeat(np.arange(400), 5)
    pairs = set(zip(rows.tolist(), graph.ids.ravel().tolist(), strict=True))
    back = {(b, a) for a, b in pairs}
    wanted = pairs | back if closure == "union" else pairs & back
    assert isinstance(csr, scipy.sparse.csr_matrix)
    coo = csr.tocoo()
    assert set(zip(coo.row.tolist(), coo.col.tolist(), strict=True)) == wanted
    assert csr.nnz == len(wanted)  # that of the copies, 0, among them
    assert csr[7, 50] == 0 and (7, 50) in wanted
    assert csr.has_sorted_indices
    a, b = coo.row[3], coo.col[3]
    assert csr[a, b] == np.float32(((X[a].astype(float) - X[b]) ** 2).sum())
    roots = knear.knn_graph(X, 5, as_csr=closure, euclidean=True)
    assert np.array_equal(roots.data, np.sqrt(csr.data))
    assert (graph.to_csr(closure, euclidean=True) != roots).nnz == 0


def test_distinct_leaves_out_copies():
    x = np.repeat(X[:40], 5, axis=0)
    graph = knear.knn_graph(x, 3, distinct=True)
    plain = knear.knn_graph(X[:40], 3)
    assert np.array_equal(graph.ids, np.repeat(plain.ids * 5, 5, axis=0))
    assert np.array_equal(graph.distances, np.repeat(plain.distances, 5, axis=0))
    assert graph.accuracy(x)[0] == 1


def test_files(tmp_path):
    graph = knear.knn_graph(X, 4, "cosine")
    graph.save(tmp_path / "g.knear")
    read = knear.read_graph(tmp_path / "g.knear")
    assert np.array_equal(read.ids, graph.ids)
    assert np.array_equal(read.distances, graph.distances)
    assert (read.metric, read.promised_recall) == ("cosine", 1)
    assert read.plan["rows"] == 400
    read.check_base(X)
    with pytest.raises(knear.InvalidArgument, match="another base"):
        read.check_base(X + 1)
    built = knear.build_graph(X, 4, tmp_path / "b.knear", "cosine")
    assert np.array_equal(built.ids, graph.ids)
    with pytest.raises(knear.IoError):
        knear.read_graph(tmp_path / "none.knear")
    (tmp_path / "bad.knear").write_bytes((tmp_path / "g.knear").read_bytes()[:-50])
    with pytest.raises(knear.CorruptFile):
        knear.read_graph(tmp_path / "bad.knear")
    knear.Index("Flat", dim=6).save(tmp_path / "i.knear")
    with pytest.raises(knear.CorruptFile, match="is no graph"):
        knear.read_graph(tmp_path / "i.knear")


def build(path, resume):
    x = np.random.default_rng(3).random((140_000, 16)).astype(np.float32)
    return knear.build_graph(x, 4, path, resume=resume, threads=1)


def test_build_goes_on_after_a_kill(tmp_path):
    path = tmp_path / "g.knear"
    child = multiprocessing.get_context("spawn").Process(target=build, args=(path, False))
    child.start()
    partial = tmp_path / "g.knear.partial"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.is_alive():
        # The sum of a block is not 0 once it is there.
        if partial.exists() and any(np.fromfile(partial, np.uint64, 1, offset=4096)):
            break
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert partial.exists() and not path.exists()
    with pytest.raises(knear.InvalidArgument, match="resume"):
        build(path, False)
    graph = build(path, True)
    assert 0 < graph.plan["searched_rows"] < 140_000
    assert not partial.exists()
    x = np.random.default_rng(3).random((140_000, 16)).astype(np.float32)
    some = slice(0, 140_000, 1009)
    near = knear.knn(x[some], x, 5)
    assert np.array_equal(graph.ids[some], near.ids[:, 1:])


def step_of(csr, path):
    return max(csr[a, b] for a, b in zip(path[:-1], path[1:], strict=True))


def test_paths_are_those_of_a_spanning_tree():
    x = np.delete(X, 50, axis=0)  # SciPy takes an edge of 0, between copies, for none
    graph = knear.knn_graph(x, 4)
    csr = graph.to_csr()
    tree = minimum_spanning_tree(csr)
    tree = tree.maximum(tree.T)
    finder = knear.PathFinder(graph)
    count, labels = connected_components(csr)
    assert finder.components == count
    pairs = rng.integers(0, 399, (60, 2)).tolist()
    for start, end in pairs:
        path, largest = finder.path(start, end)
        assert path.dtype == np.int64
        for other in (csr, (graph.distances, graph.ids), tuple(graph), csr.tocoo()):
            again = knear.smoothest_path(other, start, end)
            assert again.path.tolist() == path.tolist()
            assert again.largest_step == largest
        if labels[start] != labels[end]:
            assert (len(path), largest) == (0, np.inf)
            continue
        assert (path[0], path[-1]) == (start, end)
        if start == end:
            continue
        assert step_of(csr, path) == largest == finder.largest_step(start, end)
        assert knear.smoothest_path(tree, start, end).largest_step == largest


def test_components_are_bridged_by_the_nearest_pairs():
    graph = knear.knn_graph(APART, 3)
    assert len(knear.smoothest_path(graph, 0, 399).path) == 0
    whole = knear.PathFinder(graph, base=APART)
    assert whole.components == 1
    path, largest = whole.path(0, 399)
    far = ((APART[:200, None].astype(float) - APART[200:]) ** 2).sum(-1)
    assert largest == np.float32(far.min())
    crossing = [(a, b) for a, b in zip(path[:-1], path[1:], strict=True) if (a < 200) != (b < 200)]
    assert crossing == [(far.min(1).argmin(), 200 + far.min(0).argmin())]
    assert knear.smoothest_path(graph, 0, 399, base=APART).path.tolist() == path.tolist()
    with pytest.raises(knear.InvalidArgument, match="another base"):
        knear.PathFinder(graph, base=X)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_bridges_are_a_least_spanning_tree(metric):
    x = np.concatenate([rng.random((n, 4)) + 3 * i for i, n in enumerate([90, 1, 2, 70, 3, 40])])
    x[166:] -= 20
    graph = knear.knn_graph(x, 1, metric)
    inside, whole = knear.PathFinder(graph), knear.PathFinder(graph, base=x)
    assert inside.components > 1
    assert whole.components == 1
    # Every row's nearest other is its neighbour in a least spanning tree of all pairs, and so are
    # the bridges: no way is smoother.
    full = knear.PathFinder(knear.knn_graph(x, len(x) - 1, metric))
    for start, end in rng.integers(0, len(x), (300, 2)).tolist():
        assert whole.largest_step(start, end) == full.largest_step(start, end)


def test_what_bridges_a_graph_of_roots_is_a_root():
    draw = np.random.default_rng(3)
    x = np.vstack([draw.normal(size=(50, 3)), draw.normal(size=(50, 3)) + 40])
    graph = knear.knn_graph(x, 4)
    squared = knear.smoothest_path(graph, 3, 70, base=x)
    assert squared.largest_step > 1000
    path, largest = knear.smoothest_path(graph.to_csr(euclidean=True), 3, 70, base=x)
    assert largest == np.sqrt(np.float32(squared.largest_step))
    steps = np.sqrt(((x[path[1:]] - x[path[:-1]]) ** 2).sum(1))
    assert largest == pytest.approx(steps.max(), rel=1e-6)
    # So far from the origin that rounding would allow for either.
    far = x * np.float64(0.5) + 2000
    squared = knear.smoothest_path(knear.knn_graph(far, 4), 3, 70, base=far)
    _, largest = knear.smoothest_path(
        knear.knn_graph(far, 4).to_csr(euclidean=True), 3, 70, base=far
    )
    assert largest == np.sqrt(np.float32(squared.largest_step))
    # Graphs of another base or metric are refused where that can be seen.
    for wrong, of in ((graph.to_csr(), 2 * x), (tuple(graph), x[::-1])):
        with pytest.raises(knear.InvalidArgument, match="another base"):
            knear.smoothest_path(wrong, 3, 70, base=of)
    cosine = knear.knn_graph(x, 4, "cosine", as_csr="union")
    with pytest.raises(knear.InvalidArgument, match="another metric than l2"):
        knear.smoothest_path(cosine, 3, 70, base=x)
    assert len(knear.smoothest_path(cosine, 3, 70, base=x, metric="cosine").path) > 1


def test_statistics():
    graph = knear.knn_graph(X, 5)
    said = graph.statistics(hubs=3)
    degree = np.bincount(graph.ids.ravel(), minlength=400)
    assert said["edges"] == 2000
    assert said["most_in_degree"] == degree.max()
    assert said["hubs"] == [
        (int(i), int(degree[i])) for i in np.lexsort((np.arange(400), -degree))[:3]
    ]
    edges = [0, 1, 2, 4, 8, 16, 32, 64]
    counts = np.histogram(degree, edges)[0]
    assert said["in_degrees"] == counts[: len(said["in_degrees"])].tolist()
    assert sum(said["in_degrees"]) == 400
    mutual = sum(i in graph.ids[j] for i in range(400) for j in graph.ids[i])
    assert said["mutual_edges"] == mutual
    count, labels = connected_components(graph.to_csr())
    assert said["components"] == count
    assert said["largest_component"] == np.bincount(labels).max()


def test_accuracy_is_that_of_the_sample():
    graph = knear.knn_graph(X, 5)
    assert graph.accuracy(X) == (1.0, (pytest.approx(1 - 3.84 / 403.84, abs=1e-3), 1.0))
    # The graph of other vectors, said to be of these, has some of the neighbours.
    other = knear.knn_graph(X[::-1].copy(), 5)
    known = graph.__reduce__()[1][2]
    other = _graphs._restored(other.distances, other.ids, known, None)
    mean, (low, high) = other.accuracy(X)
    truth = knear.self_join(X, 5)
    far = truth.distances[:, -1]
    d = ((X[:, None].astype(float) - X) ** 2).sum(-1).astype(np.float32)
    shares = [np.mean(d[i, other.ids[i]] <= far[i]) for i in range(400)]
    assert mean == pytest.approx(np.mean(shares))
    assert low < mean < high
    assert other.accuracy(X, sample=50, seed=2) == other.accuracy(X, sample=50, seed=2)


def test_accuracy_is_told_of_the_base_of_the_graph_alone():
    x = np.random.default_rng(1).random((600, 5))
    graph = knear.knn_graph(x, 4)
    mean, (low, high) = graph.accuracy(x)
    assert low <= mean <= high <= 1
    with pytest.raises(knear.InvalidArgument, match="base"):
        graph.accuracy(x + 1)
    assert graph.accuracy(x, seed=-1)[0] == 1  # any whole number is a seed


def test_recall_below_1_goes_by_lists():
    x = rng.normal(size=(200, 12)).astype(np.float32)
    x = (x[rng.integers(0, 200, 100_000)] + 0.3 * rng.normal(size=(100_000, 12))).astype("f")
    graph = knear.knn_graph(x, 6, recall=0.9)
    assert graph.plan["method"] == "lists"
    assert graph.promised_recall == 0.9
    mean, (low, _) = graph.accuracy(x, sample=3000)
    assert 0.9 <= low < mean < 1
    assert (graph.ids != np.arange(100_000)[:, None]).all()


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: knear.knn_graph(X, 0), knear.InvalidArgument, "k must"),
        (lambda: knear.knn_graph(X[0], 2), knear.InvalidArgument, "base"),
        (lambda: knear.knn_graph(X, 2, "l3"), knear.InvalidArgument, "metric"),
        (lambda: knear.knn_graph(X, 2, recall=1.5), knear.InvalidArgument, "recall"),
        (lambda: knear.knn_graph(X, 2, threads=-2), knear.InvalidArgument, "but is -2"),
        (lambda: knear.knn_graph(X, 2, threads=2**40), knear.InvalidArgument, f"but is {2**40}"),
        (
            lambda: knear.smoothest_path((X, X.astype(int)), 0, 1, threads=-5),
            knear.InvalidArgument,
            "but is -5",
        ),
        (lambda: knear.knn_graph(X, True), knear.InvalidArgument, "k must be a whole .* is True"),
        (
            lambda: knear.smoothest_path(knear.knn_graph(X, 2), np.True_, 3),
            knear.InvalidArgument,
            "start must be a whole number",
        ),
        (
            lambda: knear.knn_graph(X, 2).statistics(hubs=-1),
            knear.InvalidArgument,
            "hubs must not be negative, but is -1",
        ),
        (
            lambda: knear.smoothest_path(
                (np.full((2, 1), -2.2), np.array([[1], [0]])), 0, 1, metric="cosine"
            ),
            knear.InvalidArgument,
            "is -2.2, but those of cosine are between 0 and 2",
        ),
        (lambda: knear.knn_graph(X, 2, as_csr="or"), knear.InvalidArgument, "as_csr"),
        (lambda: knear.knn_graph(X, 2, euclidean=True), knear.InvalidArgument, "as_csr"),
        (
            lambda: knear.knn_graph(X, 2, "ip", as_csr="union", euclidean=True),
            knear.InvalidArgument,
            "euclidean",
        ),
        (lambda: knear.knn_graph(X * np.nan, 2), knear.InvalidArgument, "row 0"),
        (
            lambda: knear.smoothest_path(knear.knn_graph(X, 2), 0, 1, metric="ip"),
            knear.InvalidArgument,
            "'ip', but the graph is one of 'l2'",
        ),
        (lambda: knear.smoothest_path(3, 0, 1), knear.InvalidArgument, "graph"),
        (lambda: knear.smoothest_path((X, X), 0, 1), knear.InvalidArgument, "ids"),
        (
            lambda: knear.smoothest_path(knear.knn_graph(X, 2), 0, 400),
            knear.InvalidArgument,
            "400",
        ),
        (
            lambda: knear.smoothest_path(knear.knn_graph(X, 2), -1, 3),
            knear.InvalidArgument,
            "-1",
        ),
        (
            lambda: knear.smoothest_path((np.ones((3, 1)), np.array([[1], [2], [3]])), 0, 1),
            knear.InvalidArgument,
            "neighbour 3",
        ),
        (
            lambda: knear.smoothest_path((np.ones((3, 2)), np.zeros((3, 1), int)), 0, 1),
            knear.ShapeMismatch,
            "3 x 1",
        ),
        (
            lambda: knear.smoothest_path(scipy.sparse.csr_matrix(np.ones((3, 4))), 0, 1),
            knear.ShapeMismatch,
            "square",
        ),
        (
            lambda: knear.KnnGraph(X, X.astype(int)).save("x"),
            knear.InvalidArgument,
            "knn_graph",
        ),
    ],
)
def test_bad_arguments(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_progress_and_stop():
    seen = []
    knear.knn_graph(X, 3, progress=lambda stage, share: seen.append((stage, share)))
    assert seen

    def stop(stage, share):
        raise KeyError(stage)

    with pytest.raises(KeyError):
        knear.knn_graph(rng.random((20000, 64)), 3, progress=stop)


def test_distances_beyond_float32_are_not_written(tmp_path):
    far = np.array([[1e20, 0], [0, 0], [1, 1], [2, 2]], np.float32)
    graph = knear.knn_graph(far, 2)
    with pytest.raises(knear.InvalidArgument, match="of rows 0 and 1 is inf"):
        graph.save(tmp_path / "far.knear")
    with pytest.raises(knear.InvalidArgument, match="of rows 0 and 1 is inf"):
        knear.build_graph(far, 2, tmp_path / "far.knear")
    assert not (tmp_path / "far.knear").exists()


def test_what_a_matrix_holds_is_numbers_that_float32_has():
    def matrix(values):
        return scipy.sparse.csr_matrix((values, ([0, 0, 1], [1, 2, 2])), shape=(3, 3))

    for dtype in (np.float64, np.int64, bool):
        path, _ = knear.smoothest_path(matrix(np.array([1, 0, 1], dtype)), 0, 2)
        assert path.tolist() == [0, 2]
    for values, says in ((np.array([1j, 1, 1]), "hold numbers"), ([1e300, 1, 1], "1e\\+300")):
        with pytest.raises(knear.InvalidArgument, match="graph's distances.*" + says):
            knear.smoothest_path(matrix(values), 0, 2)


@pytest.mark.parametrize(
    "copied", [lambda g: pickle.loads(pickle.dumps(g)), copy.deepcopy, copy.copy]
)
def test_graphs_are_pickled_and_copied(copied, tmp_path):
    graph = knear.knn_graph(X, 3, "cosine", distinct=True)
    other = copied(graph)
    del graph
    graph = knear.knn_graph(X, 3, "cosine", distinct=True)
    assert type(other) is knear.KnnGraph
    assert np.array_equal(other.ids, graph.ids)
    assert np.array_equal(other.distances, graph.distances)
    assert (other.metric, other.promised_recall) == ("cosine", 1)
    assert other.plan["method"] == graph.plan["method"]
    other.check_base(X)
    with pytest.raises(knear.InvalidArgument):
        other.check_base(2 * X)
    other.save(tmp_path / "g.knear")
    read = copied(knear.read_graph(tmp_path / "g.knear"))
    (tmp_path / "g.knear").unlink()
    assert read.plan == {"promised_recall": 1, "recall_argument": "exact", "rows": 400}
    assert read.statistics() == graph.statistics()
    assert read.accuracy(X)[0] == other.accuracy(X)[0]
    # A pair of arrays that is called a graph.
    plain = copied(knear.KnnGraph(graph.distances, graph.ids))
    assert np.array_equal(plain.ids, graph.ids)
    with pytest.raises(knear.InvalidArgument):
        print(plain.metric)


def test_what_was_pickled_is_checked():
    function, (distances, ids, known, report) = knear.knn_graph(X, 3).__reduce__()
    bad = ids.copy()
    bad[7, 1] = 400
    with pytest.raises(knear.InvalidArgument, match="row 7"):
        function(distances, bad, known, report)
    with pytest.raises(knear.ShapeMismatch):
        function(distances[:, :2], ids, known, report)


def test_refined_graphs():
    x = np.random.default_rng(3).random((3000, 6)).astype(np.float32)
    exact = knear.knn_graph(x, 8)
    lost = exact.ids.copy()
    lost[:, 1::2] = -1
    lost[::3, 0] = 17
    for graph in (lost, lost.astype(np.int32), (exact.distances, lost)):
        better = knear.refine_graph(graph, x, recall=0.9)
        assert better.plan["method"] == "nn-descent"
        assert better.plan["reached"] and better.plan["rounds"] >= 1
        assert better.plan["found_before"] < 0.55
        assert 0.9 <= better.promised_recall == better.plan["promised"] <= better.plan["found"]
        assert better.accuracy(x)[0] > 0.9
        better.check_base(x)
        d = ((x[:, None, :].astype(float) - x[better.ids]) ** 2).sum(-1)
        assert np.allclose(d, better.distances, rtol=1e-6)
        assert (np.diff(better.distances, axis=1) >= 0).all()
        assert (better.ids != np.arange(3000)[:, None]).all()
    again = knear.refine_graph(lost, x, recall=0.9, threads=1)
    assert np.array_equal(again.ids, better.ids)
    # Of a graph, with its metric; without a target it keeps its promise and asks no sample.
    cosine = knear.refine_graph(knear.knn_graph(x, 4, "cosine"), x)
    assert (cosine.metric, cosine.promised_recall) == ("cosine", 1)
    assert "found" not in cosine.plan
    assert np.array_equal(cosine.ids, knear.knn_graph(x, 4, "cosine").ids)


@pytest.mark.parametrize(
    "call, error, word",
    [
        (lambda: knear.refine_graph(np.zeros((400, 3)), X), knear.InvalidArgument, "whole"),
        (lambda: knear.refine_graph(np.zeros((399, 3), int), X), knear.ShapeMismatch, "399"),
        (lambda: knear.refine_graph(np.full((400, 3), 400), X), knear.InvalidArgument, "400"),
        (lambda: knear.refine_graph(np.zeros((400, 3), int), X, "x"), knear.InvalidArgument, "x"),
        (
            lambda: knear.refine_graph(np.zeros((400, 3), int), X, recall=2),
            knear.InvalidArgument,
            "recall",
        ),
        (
            lambda: knear.refine_graph(knear.knn_graph(X, 3), X, "ip"),
            knear.InvalidArgument,
            "metric",
        ),
        (lambda: knear.refine_graph(knear.knn_graph(X, 3), 2 * X), knear.InvalidArgument, "base"),
    ],
)
def test_bad_arguments_of_refining(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_scikit_learn_takes_the_matrices():
    from sklearn.cluster import DBSCAN, SpectralClustering
    from sklearn.manifold import Isomap
    from sklearn.metrics import adjusted_rand_score
    from sklearn.neighbors import KNeighborsClassifier

    draw = np.random.default_rng(5)
    labels = np.repeat(np.arange(3), 100)
    x = draw.normal(size=(300, 4)) + 20 * labels[:, None]
    matrix = knear.knn_graph(x, 10, as_csr="union", euclidean=True)
    found = DBSCAN(eps=3, min_samples=4, metric="precomputed").fit_predict(matrix)
    assert adjusted_rand_score(labels, found) == 1
    assert np.array_equal(
        found,
        DBSCAN(eps=3, min_samples=4, metric="precomputed").fit_predict(
            np.where((d := np.sqrt(((x[:, None] - x) ** 2).sum(-1))) > 0, d, 0)
        ),
    )
    # It needs this many neighbours per row, and sorts them itself.
    classifier = KNeighborsClassifier(5, metric="precomputed").fit(matrix, labels)
    assert np.array_equal(classifier.predict(matrix), labels)
    weights = matrix.copy()
    weights.data = np.exp(-(weights.data**2))
    spectral = SpectralClustering(3, affinity="precomputed", random_state=0)
    assert adjusted_rand_score(labels, spectral.fit_predict(weights)) == 1
    # Isomap takes a graph of any symmetric distances; its components have to be connected.
    line = np.linspace(0, 1, 200)[:, None] * np.ones(3)
    flat = Isomap(n_neighbors=5, n_components=1, metric="precomputed").fit_transform(
        knear.knn_graph(line, 8, as_csr="union", euclidean=True)
    )
    assert abs(np.corrcoef(flat[:, 0], line[:, 0])[0, 1]) > 0.999


@pytest.mark.parametrize("given", ["matrix", "neighbours"])
def test_umap_takes_the_graph(given, monkeypatch):
    numba = pytest.importorskip("numba", reason="umap-learn comes with `scripts/setup --bench`")
    # Compiling takes a minute, and few rows a few seconds without.
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    umap = pytest.importorskip("umap", reason="umap-learn comes with `scripts/setup --bench`")
    from sklearn.cluster import DBSCAN
    from sklearn.metrics import adjusted_rand_score

    draw = np.random.default_rng(5)
    labels = np.repeat(np.arange(3), 50)
    x = draw.normal(size=(150, 4)) + 20 * labels[:, None]
    how = {"n_neighbors": 15, "random_state": 1, "n_jobs": 1, "n_epochs": 100}
    if given == "matrix":
        matrix = knear.knn_graph(x, 15, as_csr="union", euclidean=True)
        places = umap.UMAP(metric="precomputed", **how).fit_transform(matrix)
    else:
        # UMAP counts each row as the first of its own neighbours.
        squared, ids = knear.knn_graph(x, 14)
        ids = np.column_stack([np.arange(len(x)), ids])
        distances = np.column_stack([np.zeros(len(x), np.float32), np.sqrt(squared)])
        made = umap.UMAP(precomputed_knn=(ids, distances), **how)
        with pytest.warns(UserWarning, match="not an NNDescent object"):
            places = made.fit_transform(x)
    assert adjusted_rand_score(labels, DBSCAN(eps=3).fit_predict(places)) > 0.9
