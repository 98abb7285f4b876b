"""knear.KMeans against plain NumPy."""

import numpy as np
import pytest

import knear


def blobs(rng, n=2000, dim=8, count=12):
    centres = 10 * rng.standard_normal((count, dim))
    return (centres[rng.integers(0, count, n)] + rng.standard_normal((n, dim))).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def squares(x, centroids):
    x, c = np.asarray(x, np.float64), np.asarray(centroids, np.float64)
    return ((x[:, None] - c[None]) ** 2).sum(axis=2)


def test_device(rng):
    x = blobs(rng, n=200)
    km = knear.KMeans(5, device="cpu").train(x)
    assert {step["fallback_rows"] for step in km.steps} == {0}
    with pytest.raises(knear.InvalidArgument, match="device must be cpu, cuda or cuda:N"):
        knear.KMeans(5, device="gpu").train(x)
    with pytest.raises(knear.DeviceUnavailable, match="77|without CUDA"):
        knear.KMeans(5, device="cuda:77").train(x)


def test_train_and_assign(rng):
    x = blobs(rng)
    km = knear.KMeans(12, iterations=20, seed=1)
    assert "not trained" in repr(km)
    assert km.train(x) is km
    assert km.centroids.shape == (12, 8)
    assert km.centroids.dtype == np.float32
    distances, ids = km.assign(x)
    all_squares = squares(x, km.centroids)
    np.testing.assert_array_equal(ids, all_squares.argmin(axis=1))
    np.testing.assert_allclose(distances, all_squares.min(axis=1), rtol=1e-6)
    # No row moves any more: each centroid is the mean of its rows.
    assert km.steps[-1]["moved"] == 0
    for c in range(12):
        np.testing.assert_allclose(km.centroids[c], x[ids == c].mean(axis=0), rtol=1e-5, atol=1e-5)
    assert km.steps[-1]["objective"] == pytest.approx(distances.astype(np.float64).sum(), rel=1e-6)
    objectives = [step["objective"] for step in km.steps]
    assert objectives == sorted(objectives, reverse=True)


def test_the_same_for_any_threads_and_types(rng):
    x = blobs(rng)
    first = knear.KMeans(20, seed=5, threads=1).train(x).centroids
    for threads in (2, 3):
        again = knear.KMeans(20, seed=5, threads=threads).train(x).centroids
        np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(
        first, knear.KMeans(20, seed=5).train(x.astype(np.float64)).centroids
    )
    assert (first != knear.KMeans(20, seed=6).train(x).centroids).any()


def test_spherical(rng):
    x = blobs(rng)
    for metric in ("ip", "cosine"):
        km = knear.KMeans(9, metric=metric).train(x)
        np.testing.assert_allclose(np.linalg.norm(km.centroids, axis=1), 1, rtol=1e-6)
        distances, ids = km.assign(x)
        products = x.astype(np.float64) @ km.centroids.astype(np.float64).T
        np.testing.assert_array_equal(ids, products.argmax(axis=1))


def test_options(rng):
    x = blobs(rng)
    given = x[:3] + 1
    km = knear.KMeans(5, iterations=4).train(x, initial=given, frozen=True)
    np.testing.assert_array_equal(km.centroids[:3], given)
    km = knear.KMeans(5, iterations=4).train(x, initial=x[:5], frozen=2)
    np.testing.assert_array_equal(km.centroids[:2], x[:2])
    assert (km.centroids[2:] != x[2:5]).any(axis=1).all()
    for frozen, text in ((4, "from 0 to 3"), (-1, "from 0 to 3"), (1.5, "whole number")):
        with pytest.raises(knear.InvalidArgument, match=text):
            knear.KMeans(5).train(x, initial=given, frozen=frozen)
    with pytest.raises(knear.InvalidArgument, match="initial has none"):
        knear.KMeans(5).train(x, frozen=True)
    weights = np.zeros(len(x))
    weights[:50] = 1
    alone = knear.KMeans(1).train(x, weights=weights).centroids
    np.testing.assert_allclose(alone[0], x[:50].mean(axis=0), rtol=1e-5, atol=1e-5)
    for options in (
        {"seeding": "k-means++"},
        {"restarts": 3},
        {"tolerance": 0.1},
        {"rows_per_centroid": 20},
        {"levels": 2},
    ):
        assert knear.KMeans(12, **options).train(x).centroids.shape == (12, 8)


@pytest.mark.parametrize("options", [{}, {"restarts": 3}, {"metric": "ip"}, {"levels": 2}])
def test_steps_are_told_with_their_objective_while_it_runs(rng, options):
    x = blobs(rng)
    km, told, shares = knear.KMeans(12, iterations=5, **options), [], []
    km.train(x, progress=lambda stage, share: shares.append(share), on_step=told.append)
    assert shares
    assert {"restart", "iteration", "objective", "moved"} < set(told[0])
    if options == {"levels": 2}:  # those of the first level
        assert len(told) >= 1 and [step["iteration"] for step in told] == list(range(len(told)))
    else:
        kept = km.steps[0]["restart"]
        assert [step for step in told if step["restart"] == kept] == km.steps
        assert {step["restart"] for step in told} == set(range(options.get("restarts", 1)))
    np.testing.assert_array_equal(
        km.centroids, knear.KMeans(12, iterations=5, **options).train(x).centroids
    )


def test_a_step_that_raises_stops_the_work(rng):
    x = blobs(rng)
    km = knear.KMeans(12, iterations=20).train(x)
    before, steps, heard = km.centroids, km.steps, []

    def stop(step):
        heard.append(step["objective"])
        if len(heard) == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        km.train(x[::-1], on_step=stop)
    assert len(heard) == 2
    assert km.centroids is before and km.steps is steps
    with pytest.raises(knear.InvalidArgument, match="on_step must be a function of a step, but"):
        km.train(x, on_step=3)


def test_the_bar_shows_the_objective(rng, capsys):
    pytest.importorskip("tqdm")
    x = rng.standard_normal((30000, 16)).astype(np.float32)
    knear.KMeans(200, iterations=20).train(x, progress=True)
    assert "objective " in capsys.readouterr().err


def test_errors(rng):
    x = blobs(rng, n=30)
    with pytest.raises(knear.InvalidArgument, match="call train"):
        knear.KMeans(3).assign(x)
    with pytest.raises(knear.InvalidArgument, match="k must be from 1 to 30.*but is 31"):
        knear.KMeans(31).train(x)
    with pytest.raises(knear.InvalidArgument, match="seeding must be random or k-means"):
        knear.KMeans(3, seeding="best").train(x)
    with pytest.raises(knear.InvalidArgument, match="metric is l1, but k-means takes"):
        knear.KMeans(3, metric="l1").train(x)
    with pytest.raises(knear.InvalidArgument, match="k must be a whole number"):
        knear.KMeans(3.5)
    for k in (0, -3):
        with pytest.raises(knear.InvalidArgument, match=f"k must be at least 1, but is {k}"):
            knear.KMeans(k)
    km = knear.KMeans(3).train(x)
    before = km.centroids
    x[17, 2] = np.nan
    with pytest.raises(knear.InvalidArgument, match="rows must be finite, but row 17 column 2"):
        km.train(x)
    assert km.centroids is before
    with pytest.raises(knear.ShapeMismatch, match="rows have 7 columns, centroids have 8"):
        km.assign(np.zeros((4, 7)))
    with pytest.raises(knear.ShapeMismatch, match="weights are 3, rows are 17"):
        km.train(x[:17], weights=[1, 2, 3])
    with pytest.raises(knear.InvalidArgument, match="initial must have 2 dimensions"):
        km.train(x[:17], initial=[1, 2, 3])


def test_centroids_are_float32_and_rows_of_float64_are_not_rounded(rng):
    x = rng.random((500, 3)) + 1e6  # float32 has steps of 1/16 there
    km = knear.KMeans(4, seed=2).train(x)
    assert km.centroids.dtype == np.float32
    all_squares = squares(x, km.centroids)
    distances, ids = km.assign(x)
    np.testing.assert_array_equal(ids, all_squares.argmin(axis=1))
    np.testing.assert_allclose(distances, all_squares.min(axis=1), rtol=1e-6)
    means = np.array([x[ids == each].mean(axis=0) for each in range(4)])
    np.testing.assert_array_equal(km.centroids, means.astype(np.float32))


@pytest.mark.parametrize(("offset", "spread"), [(1.7e9, 10), (1e6, 1e-1), (1e9, 1)])
def test_rows_that_float32_cannot_tell_apart_are_refused(offset, spread):
    """As times in seconds since 1970: centroids and codes, which are float32, would be the same for
    all of them. Without their mean they are clustered and coded."""
    random = np.random.default_rng(1)
    near = spread * (
        np.repeat(np.arange(4.0), 100)[:, None] + 0.01 * random.standard_normal((400, 3))
    )
    x = offset + near
    message = "lie so far from 0 .* subtract the mean of each column first"
    for train in (
        lambda: knear.KMeans(4).train(x),
        lambda: knear.ProductQuantizer(3, bits=4).train(x),
        lambda: knear.ScalarQuantizer("8").train(x),
        *(
            lambda f=f: knear.Index(f, dim=3).train(x)
            for f in ("SQ8", "PQ3x4", "IVF4,SQ8", "OPQ3_3,PQ3x4")
        ),
        lambda: knear.Index("RR3,Flat", dim=3).train(x),
    ):
        with pytest.raises(knear.InvalidArgument, match=message):
            train()
    found = knear.KMeans(4, seeding="k-means++", seed=1).train(x - x.mean(0))
    assert np.sqrt(found.assign(x - x.mean(0))[0].max()) < spread * 0.2
    # Vectors as they are, lists of them, and what begins with PCA, which subtracts the mean.
    expected = knear.knn(near[:20], near, 5).ids
    assert (knear.knn(x[:20], x, 5).ids == expected).mean() > 0.9  # the sum x was rounded itself
    for factory, least in (("IVF4,Flat", 0.9), ("PCA3,Flat", 0.9), ("PCA3,IVF4,SQ8,RFlat", 0.8)):
        index = knear.Index(factory, dim=3)
        index.train(x)
        index.add(x)
        ids = index.search(x[:20], 5, **({"probes": 4} if index.lists else {})).ids
        assert (ids == expected).mean() > least, factory
    # Rows that are equal, or added few at a time, however near to each other.
    knear.KMeans(1).train(np.full((400, 3), offset + 0.1))
    index = knear.Index("SQ8", dim=3)
    index.train(near)
    index.add(0.1 + np.array([[0.0] * 3, [1e-12] * 3]))
    assert len(index) == 2
    # One column far from 0 beside others that differ more, or that does not differ at all.
    random_rows = random.standard_normal((400, 2)) * 1e6 * spread
    knear.KMeans(4).train(np.hstack([random_rows, x[:, :1]]))
    knear.KMeans(4).train(np.hstack([near, np.full((400, 1), offset + 0.3)]))


@pytest.mark.parametrize(
    "factory", ["SQ8", "PQ3x4", "IVF4,SQ8", "OPQ3_3,PQ3x4", "RR3,Flat", "PCA3,Flat", "PCA3,SQ8"]
)
def test_far_rows_are_refused_by_codes_that_were_trained_near_0(factory):
    """Codes and transformed vectors would be the same for all of them, and searches would say
    nothing of it."""
    random = np.random.default_rng(1)
    near = random.standard_normal((400, 3))
    far = near + 1e9
    message = "^vectors lie so far from 0 .* subtract the mean of each column first$"
    index = knear.Index(factory, dim=3)
    index.train(near)
    for add in (lambda: index.add(far), lambda: index.add(far, ids=np.arange(400))):
        with pytest.raises(knear.InvalidArgument, match=message):
            add()
    assert len(index) == 0
    index.add(near)
    with pytest.raises(knear.InvalidArgument, match=message):
        index.replace(np.arange(400), far)
    assert np.abs(index.reconstruct(np.arange(400))).max() < 10
    # One row has none beside it that it could be confused with; float32 rows are what they are.
    index.add(far[:1])
    index.add(far.astype(np.float32))
    # Rows that are nearly alike, beside what codes can say.
    index.add(0.1 + 1e-12 * near[:50])
    sharded = knear.Index(factory, dim=3, shards=2)
    sharded.train(near)
    with pytest.raises(knear.InvalidArgument, match=message):
        sharded.add(far)
    # Products and directions would change without the mean.
    by_products = knear.Index(factory, dim=3, metric="ip")
    by_products.train(near)
    by_products.add(far)


def test_pca_takes_far_rows_whose_mean_it_subtracts():
    random = np.random.default_rng(1)
    far = random.standard_normal((400, 3)) + 1e9
    for factory in ("PCA3,Flat", "PCA3,SQ8"):
        index = knear.Index(factory, dim=3)
        index.train(far)
        index.add(far)
        assert len(index) == 400
