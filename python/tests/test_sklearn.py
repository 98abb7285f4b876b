"""knear.sklearn: what scikit-learn asks of estimators, and the same answers as its brute force."""

import copy
import doctest
import importlib
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn", reason="knear.sklearn needs scikit-learn")
from knear.sklearn._checks import as_bytes
from scipy import sparse
from sklearn import cluster, config_context, neighbors
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from knear import sklearn as ours

# Before 1.6 scikit-learn does not predict for fitted rows, each without itself.
LEAVES_ITSELF_OUT = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 6)
METRICS = ["euclidean", "l2", "minkowski", "sqeuclidean", "cosine", "manhattan", "cityblock"]


@parametrize_with_checks([getattr(ours, name)() for name in ours.__all__])
def test_estimators_are_what_scikit_learn_asks_for(request, estimator, check):
    # The second is what it was called before scikit-learn 1.6.
    weights = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weights_invariance")
    if isinstance(estimator, ours.KMeans) and check.func.__name__ in weights:
        why = "as of sklearn.cluster.KMeans: what is drawn depends on the number of rows"
        request.applymarker(pytest.mark.xfail(strict=True, reason=why))
    check(estimator)


def test_scikit_learn_is_imported_with_its_module_alone():
    code = "import sys, knear; assert not {'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; sys.modules['sklearn'] = None; import knear.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install ".[sklearn]" in a clone of knear' in done.stderr


def test_the_examples_of_the_docstrings_run():
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for name in ours.__all__:
        (test,) = finder.find(getattr(ours, name), name, globs={})
        assert test.examples, name
        runner.run(test)
    assert runner.summarize().failed == 0


class TestRowsThatAreChangedInPlace:
    """fit() has taken its own: indices and distances are those of the rows as they were."""

    @pytest.mark.parametrize("kind", [np.float64, np.float32, np.uint8, np.int64])
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
    def test_neighbours(self, rng, kind, order, factory):
        X = np.asarray(rng.integers(0, 100, (200, 6)), kind, order=order)
        before = X.copy()
        nearest = ours.NearestNeighbors(n_neighbors=3, radius=40, factory=factory).fit(X)
        queries = before[:20].astype(np.float64)
        wanted = nearest.kneighbors(queries), nearest.kneighbors()
        near = nearest.radius_neighbors(queries)
        X[:] = X[::-1].copy()
        for got, want in zip(
            (nearest.kneighbors(queries), nearest.kneighbors()), wanted, strict=True
        ):
            np.testing.assert_array_equal(got, want)
        for got, want in zip(nearest.radius_neighbors(queries), near, strict=True):
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)
        distances, ids = nearest.kneighbors(queries)
        each = np.linalg.norm(before[ids].astype(np.float64) - queries[:, None], axis=2)
        np.testing.assert_allclose(distances, each, rtol=1e-12)

    def test_views_and_targets(self, rng):
        whole, y = rng.random((100, 8)), rng.random(100)
        model = ours.KNeighborsRegressor(2).fit(whole[:, :4], y)
        graph = ours.KNeighborsTransformer(n_neighbors=2).fit(whole[:50])
        wanted = model.predict(None), graph.transform(np.ones((3, 8))).toarray()
        whole[:], y[:] = 0, -1
        np.testing.assert_array_equal(model.predict(None), wanted[0])
        np.testing.assert_array_equal(graph.transform(np.ones((3, 8))).toarray(), wanted[1])


def test_what_is_public_says_what_it_does():
    for name in ours.__all__:
        for method, what in vars(getattr(ours, name)).items():
            if inspect.isfunction(what) and not method.startswith("_"):
                assert what.__doc__, f"{name}.{method}"


def tied(rng, rows, dim):
    """Whole numbers, few and from 1, of which every distance is exact: many are equal."""
    return rng.integers(1, 3, (rows, dim)).astype(np.float64)


def sorted_by_hand(queries, base, metric):
    """(distances, indices) [q x n] by the definitions, a stable sort."""
    differences = queries[:, None, :] - base[None, :, :]
    if metric == "cosine":
        lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(base, axis=1)
        # Not by a product of matrices, which may round copies of a row differently.
        key = 1 - np.stack([(queries * row).sum(1) for row in base], axis=1) / lengths
    elif metric in ("manhattan", "cityblock"):
        key = np.abs(differences).sum(2)
    else:
        key = (differences**2).sum(2)
    ids = np.argsort(key, axis=1, kind="stable")
    distances = np.take_along_axis(key, ids, 1)
    return distances if metric in ("cosine", "sqeuclidean", "manhattan", "cityblock") else np.sqrt(
        distances
    ), ids


@pytest.mark.parametrize("metric", METRICS)
def test_neighbours_are_those_of_brute_force(rng, metric):
    base, queries = rng.standard_normal((700, 19)), rng.standard_normal((60, 19))
    base[5] = queries[3]
    theirs = neighbors.NearestNeighbors(n_neighbors=9, algorithm="brute", metric=metric).fit(base)
    mine = ours.NearestNeighbors(n_neighbors=9, algorithm="brute", metric=metric).fit(base)
    assert mine.effective_metric_ == theirs.effective_metric_
    assert mine.effective_metric_params_ == theirs.effective_metric_params_
    assert mine.n_samples_fit_ == theirs.n_samples_fit_ == 700
    for X in (queries, None):
        for k in (None, 1, 30):
            distances, ids = mine.kneighbors(X, k)
            want = theirs.kneighbors(X, k)
            assert distances.dtype == np.float64 and ids.dtype == np.intp
            # What scikit-learn loses to |q|^2 + |b|^2 - 2 q b near 0, before the root.
            np.testing.assert_allclose(distances, want[0], rtol=1e-12, atol=1e-6)
            np.testing.assert_array_equal(ids, want[1])
            np.testing.assert_array_equal(mine.kneighbors(X, k, return_distance=False), ids)
            assert (np.diff(distances, axis=1) >= 0).all()
            by_hand = sorted_by_hand(base if X is None else X, base, metric)
            if X is not None:
                far = by_hand[0][:, : ids.shape[1]]
                np.testing.assert_allclose(distances, far, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("metric", METRICS)
def test_equal_distances_are_ordered_by_index(rng, metric):
    base, queries = tied(rng, 300, 4), tied(rng, 40, 4)
    if metric == "cosine":  # cosines of these are not exact, but those of copies are
        base = np.repeat(rng.standard_normal((60, 4)), 5, axis=0)[rng.permutation(300)]
    mine = ours.NearestNeighbors(n_neighbors=50, metric=metric).fit(base)
    distances, ids = mine.kneighbors(queries)
    want_far, want = sorted_by_hand(queries, base, metric)
    np.testing.assert_array_equal(ids, want[:, :50])
    np.testing.assert_allclose(distances, want_far[:, :50], rtol=1e-14, atol=4e-16)
    if metric == "cosine":
        return
    ids = mine.kneighbors(return_distance=False)
    want = sorted_by_hand(base, base, metric)[1]
    others = np.array([row[row != i] for i, row in enumerate(want)])
    np.testing.assert_array_equal(ids, others[:, :50])


def test_rows_of_zeros_are_at_a_cosine_distance_of_one(rng):
    base = rng.standard_normal((20, 3))
    base[4] = 0
    distances, ids = ours.NearestNeighbors(n_neighbors=20, metric="cosine").fit(base).kneighbors(
        np.stack([base[3], base[4]])
    )  # fmt: skip
    want = neighbors.NearestNeighbors(n_neighbors=20, metric="cosine").fit(base)
    np.testing.assert_allclose(distances, want.kneighbors(base[3:5])[0], rtol=1e-12, atol=1e-15)
    assert (distances[1] == 1).all() and ids[1].tolist() == list(range(20))


def test_distances_keep_the_digits_that_float32_has_not():
    base = np.array([[1.0], [1.0 + 1e-12], [1.0 + 3e-12], [2.0]])
    distances, ids = ours.NearestNeighbors(n_neighbors=4).fit(base).kneighbors([[1.0]])
    assert ids.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_array_equal(distances[0], base[:, 0] - 1.0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["random", "tied"])
def test_all_within_a_radius_are_those_of_brute_force(rng, metric, kind):
    base, queries = rng.standard_normal((500, 5)), rng.standard_normal((30, 5))
    radius = 0.3 if metric == "cosine" else 1.2
    if kind == "tied":  # and at the radius itself
        base, queries = tied(rng, 500, 5), tied(rng, 30, 5)
        radius = 0.0625 if metric == "cosine" else 2.0
    how = {"radius": radius, "metric": metric}
    mine = ours.NearestNeighbors(**how).fit(base)
    theirs = neighbors.NearestNeighbors(algorithm="brute", **how).fit(base)
    for X in (queries, None):
        far, ids = mine.radius_neighbors(X)
        want_far, want = theirs.radius_neighbors(X)
        assert ids.dtype == far.dtype == object and len(ids) == len(base if X is None else X)
        assert 0 < sum(map(len, ids)) < 500 * len(ids)
        for i in range(len(ids)):
            order = np.argsort(want[i])
            np.testing.assert_array_equal(ids[i], want[i][order])
            np.testing.assert_allclose(far[i], want_far[i][order], rtol=1e-12, atol=1e-6)
        for alone, with_distance in zip(
            mine.radius_neighbors(X, return_distance=False), ids, strict=True
        ):
            np.testing.assert_array_equal(alone, with_distance)
        far, ids = mine.radius_neighbors(X, sort_results=True)
        for i in range(len(ids)):
            np.testing.assert_array_equal(np.lexsort((ids[i], far[i])), np.arange(len(ids[i])))
    none, at_all = mine.radius_neighbors(queries + [0, 0, 0, 0, 0.5], 0.0)
    assert [len(each) for each in (*none, *at_all)] == [0] * 60
    everything = mine.radius_neighbors(queries[:2], np.inf, return_distance=False)
    assert [each.tolist() for each in everything] == [list(range(500))] * 2


@pytest.mark.parametrize("mode", ["connectivity", "distance"])
def test_graphs_are_those_of_brute_force(rng, mode):
    base, queries = rng.standard_normal((200, 6)), rng.standard_normal((17, 6))
    mine = ours.NearestNeighbors(n_neighbors=4, radius=1.5).fit(base)
    theirs = neighbors.NearestNeighbors(n_neighbors=4, radius=1.5, algorithm="brute").fit(base)
    for X in (queries, None):
        for made, want in (
            (mine.kneighbors_graph(X, mode=mode), theirs.kneighbors_graph(X, mode=mode)),
            (mine.kneighbors_graph(X, 7, mode), theirs.kneighbors_graph(X, 7, mode)),
            (
                mine.radius_neighbors_graph(X, mode=mode, sort_results=True),
                theirs.radius_neighbors_graph(X, mode=mode, sort_results=True),
            ),
            (
                mine.radius_neighbors_graph(X, 0.7, mode),
                theirs.radius_neighbors_graph(X, 0.7, mode),
            ),
        ):
            assert type(made) is type(want) and made.format == "csr"
            assert made.shape == want.shape and made.nnz == want.nnz
            np.testing.assert_allclose(made.toarray(), want.toarray(), rtol=1e-12)
    how = {"n_neighbors": 4, "mode": mode}
    made = ours.KNeighborsTransformer(**how)
    graph = made.fit_transform(base)
    want = neighbors.KNeighborsTransformer(algorithm="brute", **how).fit_transform(base)
    np.testing.assert_allclose(graph.toarray(), want.toarray(), rtol=1e-12, atol=1e-6)
    assert graph.nnz == want.nnz == 200 * (5 if mode == "distance" else 4)
    np.testing.assert_array_equal(graph.indices.reshape(200, -1)[:, 0], np.arange(200))
    assert len(made.get_feature_names_out()) == 200
    try:
        arrays = config_context(sparse_interface="sparray")
    except TypeError:  # before scikit-learn 1.9
        return
    with arrays:
        assert isinstance(made.transform(queries), sparse.csr_array)


@pytest.mark.parametrize("weights", ["uniform", "distance", None, lambda far: np.exp(-far)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_predictions_are_those_of_brute_force(rng, weights, outputs):
    base, queries = rng.standard_normal((400, 6)), rng.standard_normal((80, 6))
    queries[:5] = base[:5]  # rows equal to the query
    shape = 400 if outputs == 1 else (400, outputs)
    classes = np.array(["red", "green", "blue"])[rng.integers(0, 3, shape)]
    targets = rng.standard_normal(shape)
    asked = (queries, None) if LEAVES_ITSELF_OUT else (queries,)
    for k in (1, 6):
        how = {"n_neighbors": k, "weights": weights}
        mine = ours.KNeighborsClassifier(**how).fit(base, classes)
        theirs = neighbors.KNeighborsClassifier(algorithm="kd_tree", **how).fit(base, classes)
        assert mine.outputs_2d_ == theirs.outputs_2d_
        np.testing.assert_array_equal(np.array(mine.classes_), np.array(theirs.classes_))
        for X in asked:
            shares = np.array(theirs.predict_proba(X))
            np.testing.assert_allclose(np.array(mine.predict_proba(X)), shares, rtol=1e-10)
            np.testing.assert_array_equal(mine.predict(X), theirs.predict(X))
        if outputs == 1:
            assert mine.score(queries, classes[:80]) == theirs.score(queries, classes[:80])
            if LEAVES_ITSELF_OUT:
                assert mine.score(None, classes) == theirs.score(None, classes)
        mine = ours.KNeighborsRegressor(**how).fit(base, targets)
        theirs = neighbors.KNeighborsRegressor(algorithm="kd_tree", **how).fit(base, targets)
        for X in asked:
            np.testing.assert_allclose(mine.predict(X), theirs.predict(X), rtol=1e-10, atol=1e-12)


def test_a_column_of_classes_is_taken_with_a_warning(rng):
    X, y = rng.standard_normal((20, 2)), rng.integers(0, 2, 20)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        model = ours.KNeighborsClassifier().fit(X, y[:, None])
    assert model.predict(X).shape == (20,)


def test_they_stand_in_pipelines_and_searches(rng):
    X = rng.standard_normal((150, 4)) * [1, 10, 100, 1000]
    y = (X[:, 0] > 0).astype(int)
    model = make_pipeline(StandardScaler(), ours.KNeighborsClassifier())
    grid = {"kneighborsclassifier__n_neighbors": [1, 5], "kneighborsclassifier__p": [2]}
    grid["kneighborsclassifier__weights"] = ["uniform", "distance"]
    search = GridSearchCV(model, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.8
    theirs = make_pipeline(StandardScaler(), neighbors.KNeighborsClassifier())
    for _ in range(2):
        same = [cross_val_score(each, X, y, cv=3) for each in (model, theirs)]
        np.testing.assert_array_equal(*same)
        model.set_params(kneighborsclassifier=ours.KNeighborsClassifier(3, weights="distance"))
        theirs.set_params(
            kneighborsclassifier=neighbors.KNeighborsClassifier(3, weights="distance")
        )
    made = make_pipeline(
        ours.KNeighborsTransformer(n_neighbors=20),
        neighbors.KNeighborsClassifier(5, metric="precomputed"),
    ).fit(X, y)
    want = ours.KNeighborsClassifier(5).fit(X, y)
    np.testing.assert_array_equal(made.predict(X + 0.1), want.predict(X + 0.1))
    made = make_pipeline(StandardScaler(), ours.KMeans(3, random_state=1)).fit(X)
    assert made.transform(X).shape == (150, 3)


@pytest.mark.parametrize("name", ours.__all__)
def test_they_are_cloned_copied_and_pickled(rng, name):
    X, y = rng.standard_normal((60, 3)), rng.integers(0, 2, 60)
    fitted = getattr(ours, name)().fit(X, y)
    assert clone(fitted).get_params() == fitted.get_params()
    method = "predict" if hasattr(fitted, "predict") else "transform"
    method = method if hasattr(fitted, method) else "kneighbors_graph"
    want = np.asarray(sparse.csr_matrix(getattr(fitted, method)(X)).todense())
    for same in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted), copy.copy(fitted)):
        got = sparse.csr_matrix(getattr(same, method)(X)).todense()
        np.testing.assert_array_equal(got, want)
    pickle.loads(pickle.dumps(clone(fitted)))


def test_element_types_and_threads(rng):
    base = rng.integers(0, 200, (300, 8))
    want = ours.NearestNeighbors().fit(base.astype(np.float64)).kneighbors(base[:9])
    for dtype in (np.float32, np.float16, np.uint8, np.int16, np.int64, np.longdouble, list):
        rows = base.tolist() if dtype is list else base.astype(dtype)
        for n_jobs in (None, 1, 2, -1, -2):
            found = ours.NearestNeighbors(n_jobs=n_jobs).fit(rows).kneighbors(rows[:9])
            assert found[0].dtype == np.float64
            for a, b in zip(found, want, strict=True):
                np.testing.assert_array_equal(a, b)


def test_an_approximate_index_can_be_asked_for(rng):
    base = rng.standard_normal((3000, 16))
    want = ours.NearestNeighbors(n_neighbors=10).fit(base)
    far, ids = want.kneighbors()
    for factory, recall in (
        ("Flat", 0.9),
        ("IVF16,Flat", 0.9),
        ("IVF16,Flat", 1.0),
        ("SQ8", 0.8),
        ("auto", 0.9),
    ):
        some = ours.NearestNeighbors(n_neighbors=10, factory=factory, recall=recall).fit(base)
        some = pickle.loads(pickle.dumps(some))
        assert factory in ("auto", some._index.factory)
        distances, found = some.kneighbors()
        if (factory, recall) == ("IVF16,Flat", 0.9):
            assert (found != ids).any()  # what is asked for is not more than it takes
        assert not (found == np.arange(3000)[:, None]).any()
        share = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(found, ids, strict=True)])
        assert share >= recall - 0.02
        measured = np.linalg.norm(base[found] - base[:, None], axis=2)
        np.testing.assert_allclose(distances, measured, rtol=1e-12)
        assert (np.diff(distances, axis=1) >= 0).all()
        np.testing.assert_array_equal(
            some.radius_neighbors(base[:3], 3.0, return_distance=False)[2],
            want.radius_neighbors(base[:3], 3.0, return_distance=False)[2],
        )


def test_what_was_fitted_counts_until_the_next_fit(rng):
    base = rng.standard_normal((500, 6))
    some = ours.NearestNeighbors(n_neighbors=3, factory="IVF4,Flat", recall=0.9).fit(base)
    want = some.kneighbors(base[:9])[1]
    some.set_params(factory="Flat")
    np.testing.assert_array_equal(some.kneighbors(base[:9])[1], want)
    some = pickle.loads(pickle.dumps(some))
    np.testing.assert_array_equal(some.kneighbors(base[:9])[1], want)
    some.set_params(recall=1.0).fit(base)
    exact = ours.NearestNeighbors(n_neighbors=3).fit(base)
    np.testing.assert_array_equal(some.kneighbors(base[:9])[1], exact.kneighbors(base[:9])[1])


def test_arrays_for_words_are_refused_in_one_line(rng):
    X, y = rng.standard_normal((30, 3)), rng.integers(0, 2, 30)
    with pytest.raises(ValueError, match="metric="):
        ours.NearestNeighbors(metric=np.ones(2)).fit(X)
    with pytest.raises(ValueError, match="weights must be"):
        ours.KNeighborsClassifier(weights=np.ones(3)).fit(X, y)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e8])
def test_k_means_begins_as_scikit_learn_does_wherever_the_rows_are(rng, offset):
    X = offset + np.repeat(rng.standard_normal((12, 2)) * 10, 50, axis=0)
    X += rng.standard_normal(X.shape)
    how = {"n_clusters": 12, "n_init": 1, "max_iter": 1, "tol": 0.0, "init": "k-means++"}
    for seed in range(5):
        mine = ours.KMeans(random_state=seed, **how).fit(X)
        theirs = cluster.KMeans(random_state=seed, **how).fit(X)
        assert mine.inertia_ <= 1.01 * theirs.inertia_
    with pytest.raises(ValueError, match="X has a value beyond the range of float32"):
        ours.KMeans(2).fit(X * 1e100)


def test_what_there_is_not_is_refused_by_name(rng):
    X, y = rng.standard_normal((30, 3)), rng.integers(0, 2, 30)
    for name in ours.__all__:
        if name == "KMeans":
            continue
        kind = getattr(ours, name)
        for how, text in (
            ({"metric": "chebyshev"}, "metric='chebyshev'; there are 'cityblock', 'cosine'"),
            ({"metric": "precomputed"}, "metric='precomputed'; there are"),
            ({"metric": np.dot}, "there are 'cityblock'"),
            ({"p": 3}, "p=3 for metric='minkowski'; there are .* 'minkowski' with p=2 or p=1"),
            ({"metric_params": {"w": [1]}}, "metric_params must be None"),
            ({"algorithm": "kd_tree"}, "algorithm must be 'auto' or 'brute', but is 'kd_tree'"),
            ({"n_neighbors": 0}, "Expected n_neighbors >= 1. Got 0"),
            ({"n_jobs": 0}, "n_jobs must be None or a whole number other than 0"),
            ({"recall": 0}, r"recall must be in \(0, 1\], but is 0"),
            ({"factory": "Flap"}, "Flap"),
        ):
            with pytest.raises(ValueError, match=text):
                kind(**how).fit(X, y)
        with pytest.raises(TypeError, match="n_neighbors does not take"):
            kind(n_neighbors=2.5).fit(X, y)
        with pytest.raises(TypeError, match="[Ss]parse"):
            kind().fit(sparse.csr_matrix(X), y)
        with pytest.raises(NotFittedError):
            kind().kneighbors(X)
        fitted = kind().fit(X, y)
        with pytest.raises(ValueError, match="n_neighbors = 31, n_samples_fit = 30"):
            fitted.kneighbors(X, 31)
        with pytest.raises(ValueError, match="Expected n_neighbors < n_samples_fit"):
            fitted.kneighbors(n_neighbors=30)
        with pytest.raises(ValueError, match="3 features"):
            fitted.kneighbors(X[:, :2])
        with pytest.raises(ValueError, match="at most 3.4e38 in size"):
            kind().fit(X * 1e200, y)
    nearest = ours.NearestNeighbors().fit(X)
    for radius in (-1.0, np.nan, "1"):
        with pytest.raises(ValueError, match="radius must be a number of at least 0"):
            nearest.radius_neighbors(X, radius)
    with pytest.raises(ValueError, match="return_distance must be True"):
        nearest.radius_neighbors(X, return_distance=False, sort_results=True)
    for graph in (nearest.kneighbors_graph, nearest.radius_neighbors_graph):
        with pytest.raises(ValueError, match="Unsupported mode"):
            graph(X, mode="both")
    with pytest.raises(ValueError, match="weights must be 'uniform'"):
        ours.KNeighborsRegressor(weights="heavy").fit(X, y)
    with pytest.raises(ValueError, match="zero weights"):
        ours.KNeighborsClassifier(weights=np.zeros_like).fit(X, y).predict(X)
    with pytest.raises(ValueError, match=r"shape \(30,\) for distances of shape \(30, 5\)"):
        ours.KNeighborsClassifier(weights=lambda far: far[:, 0]).fit(X, y).predict(X)


def clouds(rng, rows=1200, dim=7, number=12):
    return rng.standard_normal((rows, dim)) + 2.5 * rng.standard_normal((number, dim))[
        rng.integers(0, number, rows)]  # fmt: skip


@pytest.mark.parametrize("kind", ["float64", "float32", "bytes", "far"])
@pytest.mark.parametrize("tol", [0, 1e-4])
def test_k_means_is_as_good_as_scikit_learns(rng, kind, tol):
    X = clouds(rng)
    if kind == "float32":
        X = X.astype(np.float32)
    elif kind == "bytes":
        X = np.clip(np.rint(X * 12 + 128), 0, 255)
    elif kind == "far":  # where float32 tells few of the rows apart
        X = X * 1e-3 + 1e5
    before = X.copy()
    how = {"init": X[:15].copy(), "n_init": 1, "tol": tol}
    mine, theirs = ours.KMeans(15, **how).fit(X), cluster.KMeans(15, **how).fit(X)
    np.testing.assert_array_equal(X, before)
    assert mine.inertia_ <= 1.01 * theirs.inertia_
    assert mine.cluster_centers_.dtype == theirs.cluster_centers_.dtype == X.dtype
    assert mine.labels_.dtype == theirs.labels_.dtype
    np.testing.assert_array_equal(mine.labels_, mine.predict(X))
    assert 1 < mine.n_iter_ <= 300
    wide = X.astype(np.float64)
    centers = mine.cluster_centers_.astype(np.float64)
    squares = np.square(wide - centers[mine.labels_]).sum()
    assert mine.inertia_ == pytest.approx(squares, rel=1e-9)
    assert mine.score(X) == pytest.approx(-squares, rel=1e-9)
    distances = np.linalg.norm(wide[:, None] - centers, axis=2)
    atol = 1e-4 if kind in ("far", "float32") else 1e-10
    np.testing.assert_allclose(mine.transform(X), distances, rtol=1e-5, atol=atol)
    np.testing.assert_array_equal(mine.labels_, distances.argmin(axis=1))
    if tol == 0:  # centres are the means of their rows, in the last bit or two
        for number in range(15):
            mean = wide[mine.labels_ == number].mean(axis=0)
            eps = np.finfo(X.dtype).eps
            np.testing.assert_allclose(centers[number], mean, rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_single_iterations_are_those_of_scikit_learn(rng, iterations):
    X = clouds(rng)
    how = {"init": X[:10], "n_init": 1, "tol": 0, "max_iter": iterations}
    mine = ours.KMeans(10, **how).fit(X)
    theirs = cluster.KMeans(10, **how).fit(X)
    assert mine.n_iter_ == theirs.n_iter_ == iterations
    np.testing.assert_allclose(mine.cluster_centers_, theirs.cluster_centers_, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(mine.labels_, theirs.labels_)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_first_centres_are_those_of_scikit_learn(rng, init):
    X = clouds(rng)
    for seed in range(3):
        how = {"init": init, "n_init": 1, "max_iter": 1, "random_state": seed}
        mine, theirs = ours.KMeans(9, **how).fit(X), cluster.KMeans(9, **how).fit(X)
        np.testing.assert_allclose(mine.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)
    again = ours.KMeans(9, **how).fit(X)
    np.testing.assert_array_equal(again.cluster_centers_, mine.cluster_centers_)
    many = ours.KMeans(9, init=init, n_init=5, random_state=0).fit(X)
    assert many.inertia_ <= ours.KMeans(9, init=init, n_init=1, random_state=0).fit(X).inertia_

    def first(rows, k, random_state):
        return rows[random_state.permutation(len(rows))[:k]]

    assert ours.KMeans(9, init=first, random_state=0).fit(X).inertia_ < 3 * many.inertia_


def test_sample_weights_are_repetitions(rng):
    X = clouds(rng, 300)
    weights = rng.integers(0, 4, 300)
    weights[:6] = 1
    how = {"init": X[:6], "n_init": 1, "tol": 0}
    weighted = ours.KMeans(6, **how).fit(X, sample_weight=weights)
    repeated = ours.KMeans(6, **how).fit(np.repeat(X, weights, axis=0))
    theirs = cluster.KMeans(6, **how).fit(X, sample_weight=weights)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-9)
    assert weighted.inertia_ <= 1.01 * theirs.inertia_
    np.testing.assert_allclose(
        weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-9, atol=1e-9
    )
    assert weighted.score(X, sample_weight=weights) == pytest.approx(-weighted.inertia_)
    scaled = ours.KMeans(6, **how).fit(X, sample_weight=weights * 1e-30)
    np.testing.assert_array_equal(scaled.labels_, weighted.labels_)


def test_empty_clusters_get_rows_and_copies_warn(rng):
    X = clouds(rng, 200)
    init = np.concatenate([X[:4], np.full((2, 7), 1e3)])
    for iterations in (1, 50):
        model = ours.KMeans(6, init=init, max_iter=iterations).fit(X)
        assert len(np.unique(model.labels_)) == 6
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(2\) found smaller"):
        ours.KMeans(3, random_state=0).fit(np.array([[0.0], [0.0], [1.0], [1.0]]))


def test_verbose_k_means_prints_its_iterations(rng, capsys):
    model = ours.KMeans(5, random_state=0, verbose=1).fit(clouds(rng))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Initialization complete"
    assert len(lines) == 1 + model.n_iter_
    inertia = [float(line.rstrip(".").split()[-1]) for line in lines[1:]]
    assert (np.diff(inertia) <= 1e-6 * inertia[0]).all()


def test_k_means_refuses_by_name(rng):
    X = rng.standard_normal((30, 3))
    for how, text in (
        ({"algorithm": "elkan"}, "algorithm must be 'lloyd', but is 'elkan'"),
        ({"init": "best"}, "init must be 'k-means"),
        ({"init": X[:3]}, r"centers \(3, 3\) does not match the number of clusters 8"),
        ({"init": X[:8, :2]}, r"centers \(8, 2\) does not match the number of features"),
        ({"n_init": "many"}, "n_init must be 'auto' or a number"),
        ({"n_init": 0}, "Expected n_init >= 1"),
        ({"n_clusters": 0}, "Expected n_clusters >= 1"),
        ({"n_clusters": 31}, "n_samples=30 should be >= n_clusters=31"),
        ({"max_iter": 0}, "Expected max_iter >= 1"),
        ({"tol": -1}, "tol must be a number of at least 0"),
        ({"copy_x": "no"}, "copy_x must be True or False"),
        ({"n_jobs": 0}, "n_jobs must be None"),
    ):
        with pytest.raises(ValueError, match=text):
            ours.KMeans(**how).fit(X)
    with pytest.warns(RuntimeWarning, match="Explicit initial center position passed"):
        ours.KMeans(2, init=X[:2], n_init=3).fit(X)
    for weights, text in (
        (np.ones(29), r"expected \(30,\)"),
        (-np.ones(30), "not be negative"),
        (np.zeros(30), "nor all zero"),
    ):
        with pytest.raises(ValueError, match=text):
            ours.KMeans(2).fit(X, sample_weight=weights)
    with pytest.raises(NotFittedError):
        ours.KMeans().predict(X)
    with pytest.raises(TypeError, match="[Ss]parse"):
        ours.KMeans().fit(sparse.csr_matrix(X))


def three_clouds(rng):
    labels = np.repeat(np.arange(3), 60)
    return rng.standard_normal((180, 5)) + 12 * np.eye(3, 5)[labels], labels


@pytest.mark.parametrize("module", ["sklearn.cluster", "hdbscan"])
def test_hdbscan_takes_the_graph(rng, module):
    reason = "scikit-learn's own is tried; that of the package hdbscan where it is installed"
    hdbscan = pytest.importorskip(module, reason=reason).HDBSCAN
    X, labels = three_clouds(rng)
    # Both want a graph that is connected and symmetric: all rows here.
    graph = ours.KNeighborsTransformer(n_neighbors=179).fit_transform(X)
    graph = graph.maximum(graph.T).tocsr()
    how = {"min_cluster_size": 20}
    if module == "sklearn.cluster":
        how["copy"] = True
    found = hdbscan(metric="precomputed", **how).fit_predict(graph)
    assert adjusted_rand_score(labels, found) > 0.9
    want = hdbscan(metric="euclidean", **how).fit_predict(X)
    assert adjusted_rand_score(want, found) > 0.9


def test_dbscan_takes_the_graph_and_the_neighbours(rng):
    X, labels = three_clouds(rng)
    graph = ours.NearestNeighbors(radius=4.0).fit(X).radius_neighbors_graph(X, mode="distance")
    found = cluster.DBSCAN(eps=4.0, metric="precomputed").fit_predict(graph)
    np.testing.assert_array_equal(found, cluster.DBSCAN(eps=4.0).fit_predict(X))
    assert adjusted_rand_score(labels, found) > 0.9


@pytest.mark.parametrize("given", ["graph", "neighbours"])
def test_umap_takes_the_graph_and_the_neighbours(rng, given):
    reason = "umap-learn brings numba and LLVM, 210 MB: install it to have this tried"
    umap = pytest.importorskip("umap", reason=reason)
    X, labels = three_clouds(rng)
    how = {"n_neighbors": 15, "random_state": 1, "n_jobs": 1}
    if given == "graph":
        graph = ours.KNeighborsTransformer(n_neighbors=15).fit_transform(X)
        graph = graph.maximum(graph.T)  # UMAP wants it symmetric
        places = umap.UMAP(metric="precomputed", **how).fit_transform(graph)
    else:
        distances, ids = ours.NearestNeighbors(n_neighbors=15).fit(X).kneighbors(X)
        made = umap.UMAP(precomputed_knn=(ids, distances), **how)
        with pytest.warns(UserWarning, match="not an NNDescent object"):
            places = made.fit_transform(X)
    found = ours.KMeans(3, n_init=5, random_state=0).fit_predict(places)
    assert adjusted_rand_score(labels, found) > 0.9


def test_modules_are_found_by_name():
    assert importlib.import_module("knear.sklearn") is ours


@pytest.mark.parametrize("rows", [1, 700, 12000])  # the last by several threads
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_rows_that_are_bytes_are_read_as_bytes(rows, dtype):
    x = (np.arange(rows * 720).reshape(rows, 720) % (128 if dtype == np.int8 else 256)).astype(
        dtype
    )
    got = as_bytes(x, 2)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, x)
    for wrong in [-1] if dtype == np.int8 else [-1, 256, 0.5, 1e30, np.inf]:
        other = x.copy()
        other[-1, -1] = wrong
        assert as_bytes(other, 2) is other


def test_neighbors_of_bytes_are_those_of_the_numbers():
    random = np.random.default_rng(3)
    x = random.integers(0, 256, (300, 20)).astype(np.float64)
    queries = random.uniform(-10, 300, (40, 20))
    for metric in ("euclidean", "cosine"):
        got = ours.NearestNeighbors(n_neighbors=7, metric=metric).fit(x).kneighbors(queries)
        wanted = neighbors.NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute")
        wanted = wanted.fit(x).kneighbors(queries)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(got[1], wanted[1])


@pytest.mark.parametrize("name", ["KNeighborsClassifier", "KNeighborsRegressor"])
def test_sparse_targets_are_refused_when_they_are_given(rng, name):
    X, y = rng.standard_normal((50, 3)), rng.integers(0, 2, (50, 2))
    for kind in (sparse.csr_matrix, sparse.coo_array):
        with pytest.raises(TypeError, match=r"Sparse data was passed for y.*\.toarray\(\)"):
            getattr(ours, name)().fit(X, kind(y))
    assert getattr(ours, name)().fit(X, y).predict(X[:4]).shape == (4, 2)
