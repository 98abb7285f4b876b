"""knear.faiss: Kmeans, Clustering and what trains by them. Centroids are FAISS's, so that codes and
lists that are made of them are, too."""

import numpy as np
import pytest
from faiss_pair import needs_faiss, ours, refused, same, theirs


@needs_faiss
@pytest.mark.parametrize("spherical", [False, True])
def test_k_means(rows, spherical):
    options = {"niter": 12, "seed": 3, "spherical": spherical, "nredo": 2}
    pair = [module.Kmeans(12, 16, **options) for module in (ours, theirs)]
    for km in pair:
        assert km.train(rows) == km.obj[-1]
    np.testing.assert_allclose(pair[0].centroids, pair[1].centroids, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pair[0].obj, pair[1].obj, rtol=1e-4)
    for km in pair:
        assert km.centroids.shape == (16, 12) and km.obj.shape in ((12,), (24,))
        assert set(km.iteration_stats[0]) == {
            "obj",
            "time",
            "time_search",
            "imbalance_factor",
            "nsplit",
        }
        assert km.index.ntotal == 16
    same_centroids = ours.Kmeans(12, 16, spherical=spherical)
    same_centroids.set_index()
    same_centroids.centroids = pair[1].centroids
    a, b = same_centroids.assign(rows), pair[1].assign(rows)
    assert a[0].shape == a[1].shape == (3000,)
    same(a, b)


@needs_faiss
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"niter": 0},
        {"nredo": 4, "seed": 7},
        {"max_points_per_centroid": 20},
        {"int_centroids": True},
        {"niter": 100},
    ],
    ids=lambda options: " ".join(options) or "defaults",
)
def test_k_means_are_those_of_faiss(rows, options):
    """Rows are drawn, and centroids begun, by FAISS's random numbers."""
    a, b = (module.Kmeans(12, 16, **options) for module in (ours, theirs))
    x = rows * np.float32(10 if "int_centroids" in options else 1)
    assert a.train(x) == pytest.approx(b.train(x), rel=1e-4)
    np.testing.assert_allclose(a.centroids, b.centroids, rtol=1e-4, atol=1e-4)
    assert abs(len(a.obj) - len(b.obj)) <= 1  # the last one may differ by rounding
    if "int_centroids" in options:
        np.testing.assert_array_equal(a.centroids, np.rint(a.centroids))


@pytest.mark.parametrize("method", [0, 1], ids=["random", "k-means++"])
def test_centroids_of_length_1_that_are_rounded_to_zero(rows, method):
    """Values of centroids of length 1 are mostly below 1/2: rounded, a centroid has no direction,
    and inner products with it are 0."""
    x = np.abs(rows)
    found = []
    for module in (ours, theirs):
        if module is not None:
            options = {"spherical": True, "int_centroids": True, "init_method": method}
            km = module.Kmeans(12, 16, niter=6, seed=3, **options)
            km.train(x)
            assert 1 <= len(km.obj) <= 6 and (km.obj >= 0).all()
            np.testing.assert_array_equal(km.centroids, np.rint(km.centroids))
            found.append(km.obj[0])
    if len(found) == 2 and method == 0:
        assert found[0] == pytest.approx(found[1], rel=1e-4)  # from the same first centroids


@needs_faiss
@pytest.mark.parametrize("string", ["IVF40,PQ4np", "IVF40,SQ8", "PQ3x6np", "RR6,IVF10,SQ4"])
def test_trained_as_by_faiss(rows, string):
    """The same centroids, so that nearly all codes are the same, too."""
    codes = []
    for module in (ours, theirs):
        index = module.index_factory(12, string)
        index.train(rows)
        codes.append(index.sa_encode(rows))
    assert (codes[0] == codes[1]).all(1).mean() > 0.97


def test_clustering_by_products(rows, faiss):
    """An index of inner products says where rows go, and the best run is kept."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    objectives = []
    for runs in (1, 8):
        clustering = faiss.Clustering(12, 20)
        clustering.nredo = runs
        index = faiss.IndexFlatIP(12)
        clustering.train(unit, index)
        stats = clustering.iteration_stats
        objectives.append(stats.at(stats.size() - 1).obj)
        assert index.search(unit, 1)[0].sum() == pytest.approx(objectives[-1], rel=0.01)
    assert objectives[1] > objectives[0]
    codec = faiss.index_factory(12, "SQ8")
    codec.train(rows)
    encoded = faiss.Clustering(12, 20)
    encoded.train_encoded(codec.sa_encode(rows), codec, faiss.IndexFlatL2(12))
    plain = faiss.Clustering(12, 20)
    plain.train(codec.sa_decode(codec.sa_encode(rows)), faiss.IndexFlatL2(12))
    centroids = [faiss.vector_to_array(each.centroids) for each in (encoded, plain)]
    np.testing.assert_array_equal(*centroids)


@pytest.mark.parametrize("method", ["RANDOM", "KMEANS_PLUS_PLUS", "AFK_MC2"])
def test_first_centroids(rows, method, faiss):
    """Rows, no two alike; far from each other, and from those that are there, where they can."""

    def first(k, *existing):
        init = faiss.ClusteringInitialization(12, k)
        init.method = getattr(faiss, f"ClusteringInitMethod_{method}")
        init.seed = 5
        out = np.zeros((k, 12), np.float32)
        pointers = [len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(out), *existing]
        init.init_centroids(*pointers)
        return out

    centroids = first(40)
    assert faiss.knn(centroids, rows, 1)[0].max() < 1e-5
    assert faiss.knn(centroids, centroids, 2)[0][:, 1].min() > 1e-4
    np.testing.assert_array_equal(centroids, first(40))
    if method != "RANDOM":
        there = np.ascontiguousarray(centroids[:30])
        beside = np.concatenate([there, first(10, 30, faiss.swig_ptr(there))])
        without = np.concatenate([there, first(10)])
        near, far = (faiss.knn(rows, each, 1)[0].sum() for each in (beside, without))
        assert near < far


def test_clustering(rows, faiss):
    index = faiss.IndexFlatL2(12)
    clustering = faiss.Clustering(12, 20)
    clustering.niter = 5
    clustering.train(rows, index)
    assert index.ntotal == 20
    centroids = faiss.vector_to_array(clustering.centroids).reshape(20, 12)
    np.testing.assert_array_equal(index.reconstruct_n(), centroids)
    km = faiss.Kmeans(12, 20, niter=4)
    km.train(rows, init_centroids=centroids)
    assert km.obj[0] <= clustering.iteration_stats.at(4).obj * 1.001
    frozen = faiss.Kmeans(12, 20, frozen_centroids=True, niter=3)
    frozen.train(rows, init_centroids=centroids[:15])
    np.testing.assert_array_equal(frozen.centroids[:15], centroids[:15])
    few = faiss.Kmeans(12, 20, niter=3)
    with refused():
        few.train(rows[:19])
    with refused():
        few.train(np.full((50, 12), np.nan))
    with pytest.raises(AssertionError):
        few.assign(rows)
    with refused():
        faiss.IndexFlatL2(12).reconstruct(0)
    few.train(rows[:20])
    np.testing.assert_array_equal(few.centroids, rows[:20])


def test_weighted_k_means(rows, faiss):
    """One heavy row draws a centroid; a single one is the weighted mean."""
    weights = np.ones(3000, np.float32)
    weights[7] = 1e6
    km = faiss.Kmeans(12, 1, niter=3, max_points_per_centroid=3000)
    km.train(rows, weights=weights)
    np.testing.assert_allclose(km.centroids[0], rows[7], atol=0.02)
    plain = faiss.Kmeans(12, 1, niter=3, max_points_per_centroid=3000)
    plain.train(rows)
    np.testing.assert_allclose(plain.centroids[0], rows.mean(0), atol=1e-3)
    with pytest.raises(AssertionError):
        km.train(rows, weights=weights[:5])


@pytest.mark.parametrize("method", ["KMEANS_PLUS_PLUS", "AFK_MC2"])
def test_centroids_far_apart_by_inner_products(rows, faiss, method):
    found = []
    for way in ("RANDOM", method):
        clustering = faiss.Clustering(12, 40)
        clustering.niter, clustering.init_method = 1, getattr(faiss, f"ClusteringInitMethod_{way}")
        index = faiss.IndexFlatIP(12)
        clustering.train(rows, index)
        assert index.ntotal == 40
        found.append(faiss.vector_to_array(clustering.centroids))
    assert not np.array_equal(*found)


def test_how_a_product_quantizer_may_begin(rows):
    pq = ours.ProductQuantizer(12, 4, 4)
    pq.train_type = pq.Train_hypercube
    with pytest.raises(NotImplementedError, match="Train_hot_start"):
        pq.train(rows)


@needs_faiss
@pytest.mark.parametrize("whole", [False, True])
def test_fewer_frozen_centroids_than_clusters(rows, whole):
    """The others are those that FAISS draws, and move."""
    x = rows * 100 if whole else rows
    first, found = np.rint(x[:4]) if whole else x[:4], []
    for module in (ours, theirs):
        km = module.Kmeans(12, 10, niter=3, frozen_centroids=True, int_centroids=whole)
        km.train(x, init_centroids=first)
        np.testing.assert_array_equal(km.centroids[:4], first)
        found.append(km.centroids)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_far_rows_of_float64_are_refused_before_they_become_float32():
    """Times in seconds since 1970: float32 has the same number for all of them."""
    near = np.random.default_rng(1).standard_normal((400, 4))
    far = near + 1e9

    for train in (
        lambda x: ours.Kmeans(4, 4).train(x),
        lambda x: ours.Clustering(4, 4).train(x, ours.IndexFlatL2(4)),
        lambda x: ours.kmeans_clustering(4, 400, 4, x, np.empty((4, 4), np.float32)),
        lambda x: ours.ProductQuantizer(4, 2, 4).train(x),
        lambda x: ours.ScalarQuantizer(4, 0).train(x),
        lambda x: ours.PCAMatrix(4, 2).train(x),
        *(
            lambda x, f=f: ours.index_factory(4, f).train(x)
            for f in ("SQ8", "PQ2x4", "IVF4,Flat", "IVF4,PQ2x4", "PCA2,Flat")
        ),
    ):
        with pytest.raises(
            RuntimeError, match="^x lie so far from 0 .* mean of each column first$"
        ):
            train(far)
        train(near)
        train(far.astype(np.float32))
    # By directions a mean must stay, and what learns nothing takes what FAISS takes.
    ours.Kmeans(4, 4, spherical=True).train(far)
    ours.IndexFlatL2(4).train(far)
