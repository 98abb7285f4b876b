"""What knear.faiss does where FAISS loses rows or answers wrongly: docs/from_faiss.md names the
differences."""

import importlib

import knear.faiss as ours
import numpy as np
import pytest
from faiss_pair import refused

import knear
from knear import _options

EXTRA = {
    "L1": lambda x, y: np.abs(x - y).sum(),
    "Linf": lambda x, y: np.abs(x - y).max(),
    "Lp": lambda x, y: (np.abs(x - y) ** 1.5).sum(),
    "Canberra": lambda x, y: sum(
        abs(a - b) / (abs(a) + abs(b)) for a, b in zip(x, y, strict=True) if a or b
    ),
    "BrayCurtis": lambda x, y: np.abs(x - y).sum() / (np.abs(x + y).sum() or 1),
    "JensenShannon": lambda x, y: sum(
        v * np.log(v / ((a + b) / 2)) / 2 for a, b in zip(x, y, strict=True) for v in (a, b) if v
    ),
    "NaNEuclidean": lambda x, y: np.square(x - y).sum(),
    "GOWER": lambda x, y: np.abs(x - y).mean(),
    "Jaccard": lambda x, y: np.minimum(x, y).sum() / np.maximum(x, y).sum() if (x + y).any() else 1,
}


@pytest.mark.parametrize("metric", EXTRA)
def test_zeros_in_both_rows(metric):
    """A plain loop over rows of many zeros, some of them equal, some nothing but zeros."""
    random = np.random.default_rng(1)
    x = random.random((80, 9), dtype=np.float32) * (random.random((80, 9)) < 0.5)
    x[7] = x[60] = 0
    x[40:50] = x[:10]
    expected = np.array([[EXTRA[metric](a, b) for b in x] for a in x.astype(np.float64)])
    index = ours.IndexFlat(9, getattr(ours, f"METRIC_{metric}"))
    index.metric_arg = 1.5
    index.add(x)
    distances, ids = index.search(x, 80)
    np.testing.assert_allclose(
        np.take_along_axis(distances, np.argsort(ids, 1), 1), expected, rtol=1e-6, atol=1e-7
    )
    first = ids[:, 0]
    assert (x[first] == x).all()  # each finds itself, or its copy


@pytest.mark.parametrize("string", ["Flat", "SQ8", "PQ4x4np", "IVF4,Flat", "IVF4,PQ4x4np", "RFlat"])
def test_an_index_is_not_merged_with_itself(rows, string):
    index = ours.index_factory(12, "SQ8,RFlat" if string == "RFlat" else string)
    index.train(rows)
    index.add(rows[:100])
    for merge in (
        lambda: index.merge_from(index),
        lambda: index.merge_from(index, 0),
        lambda: ours.merge_into(index, index, False),
    ):
        with refused(match="otherIndex is the index itself"):
            merge()
    assert index.ntotal == 100
    mapped = ours.IndexIDMap2(ours.IndexFlatL2(12))
    mapped.add_with_ids(rows[:5], np.arange(5) + 7)
    other = ours.IndexIDMap2(ours.IndexFlatL2(12))
    other.index = mapped.index
    with refused(match="otherIndex is the index itself"):
        mapped.merge_from(other)
    assert mapped.ntotal == 5


@pytest.mark.parametrize("string", ["IVF8,Flat", "IVF8,PQ4x4np", "IVF8,SQ8", "PQ4x4np", "SQ8"])
def test_indexes_that_were_trained_apart_are_not_merged(rows, string):
    """FAISS takes the codes, which stand for other vectors then: no row finds itself."""
    index, other = (ours.index_factory(12, string) for _ in range(2))
    index.train(rows[:1500])
    other.train(rows[1500:] * 2)
    index.add(rows[:50])
    other.add(rows[50:90])
    with refused(match="otherIndex was trained apart"):
        index.merge_from(other)
    assert (index.ntotal, other.ntotal) == (50, 40)
    same = ours.clone_index(index)
    same.reset()
    same.add(rows[50:90])
    index.merge_from(same, 50 if "IVF" in string else 0)
    assert (index.ntotal, same.ntotal) == (90, 0)
    if "IVF" in string:
        index.nprobe = 8
    assert (index.search(rows[:90], 5)[1] == np.arange(90)[:, None]).any(1).mean() > 0.9


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (np.array([1, 2**63], np.uint64), ValueError, "9223372036854775808"),
        ([1.0, 1.7], TypeError, "1.7"),
        ([1, np.nan], TypeError, "nan"),
        ([1e30, 1], ValueError, "1e.30"),
        ([5, -1], ValueError, "-1"),
        ([5, 2**62 + 1], ValueError, "4611686018427387905"),
        ([True, False], TypeError, "bool"),
        (["1", "2"], TypeError, "whole numbers"),
    ],
)
def test_ids_that_are_none(rows, ids, error, message):
    mapped = ours.IndexIDMap(ours.IndexFlatL2(12))
    lists = ours.index_factory(12, "IVF4,Flat")
    lists.train(rows)
    for index in (mapped, lists):
        with pytest.raises(error, match=f"ids .*{message}"):
            index.add_with_ids(rows[:2], ids)
        assert index.ntotal == 0
    with pytest.raises(error, match=f"ids .*{message}"):
        lists.add_core(2, rows[:2], np.asarray(ids), np.zeros(2, np.int64))
    # These name no row, and so none is found.
    if message not in ("-1", "4611686018427387905"):
        with pytest.raises(error, match=f"ids .*{message}"):
            ours.IDSelectorBatch(ids)
    mapped.add_with_ids(rows[:2], [3.0, 4.0])  # as a table with other columns of floats has them
    assert mapped.search(rows[:2], 1)[1].ravel().tolist() == [3, 4]


def test_ids_that_nobody_found_are_not_in_common():
    a, b = np.array([3, -1, 5, -1]), np.array([-1, 5, 9])
    assert ours.ranklist_intersection_size(4, a, 3, b) == 1
    assert ours.ranklist_intersection_size(2, a[1:2].repeat(2), 1, b) == 0


@pytest.mark.parametrize("metric", [1, 0], ids=["l2", "ip"])
@pytest.mark.parametrize("string", ["Flat", "SQ8", "SQ6", "SQfp16", "PQ4x4np", "PQ3x5np"])
def test_given_lists_are_searched_by_knear(rows, string, metric, monkeypatch):
    index = ours.index_factory(12, f"IVF8,{string}", metric)
    index.train(rows)
    index.add(rows)
    index.nprobe = 3
    queries = rows[:50] + np.float32(0.01)
    lists = np.stack([np.random.default_rng(i).permutation(8)[:3] for i in range(50)])
    lists[::7, 1] = -1
    lists[5] = -1
    module = importlib.import_module("knear.faiss.ivf.index")
    by_lists = module.nearest_in
    which = ours.SearchParametersIVF(nprobe=3, sel=ours.IDSelectorRange(100, 2000))
    for params in (None, which):
        expected = by_lists(
            index, queries, 9, lists, params and params.sel.mask(np.arange(3000)), 0, False
        )
        with monkeypatch.context() as patch:
            patch.setattr(module, "nearest_in", None)  # which takes many times as long
            distances, ids = index.search_preassigned(queries, 9, lists, params=params)
        np.testing.assert_array_equal(ids, expected[1])
        # Distances to codes are sums in float32, of numbers as large as the squared lengths.
        largest = max(np.square(rows).sum(1).max(), np.square(queries).sum(1).max())
        np.testing.assert_allclose(distances, expected[0], rtol=0, atol=12 * largest * 2.0**-24)
    assert (ids[5] == -1).all()
    ours.cvar.indexIVF_stats.reset()
    # As FAISS: a list that is given twice is searched twice.
    twice = lists[:, [0, 0, 2]]
    expected = by_lists(index, queries, 9, twice, None, 0, False)
    np.testing.assert_array_equal(index.search_preassigned(queries, 9, twice)[1], expected[1])
    assert any(len(set(each.tolist())) < 9 for each in expected[1])


@pytest.mark.parametrize("width", [1, 5, 256])
@pytest.mark.parametrize("gone", [1, 2, 64, 65, 300])
def test_rows_that_are_taken_out_of_a_store(width, gone):
    """Few rows in place, many by a copy of the others: the rest is as it was, in its order, and
    rows that are added come behind."""
    random = np.random.default_rng(gone)
    for n in (1, 2, 3, 65, 66, 301):
        store = ours.store.Store(width)
        codes = random.integers(0, 256, (n, width)).astype(np.uint8)
        ids, lists = random.permutation(n) * 3, random.integers(0, 9, n)
        store.add(codes, ids, lists)
        store.add(codes[:1], [-7], [10])  # with room behind
        kept = np.ones(n + 1, np.bool_)
        kept[random.permutation(n + 1)[:gone]] = False
        before = [each.copy() for each in (store.codes, store.ids, store.lists)]
        store.keep(kept)
        store.add(codes[-1:], [-8], [11])
        after = store.codes, store.ids, store.lists
        added = codes[-1:], [-8], [11]
        for got, had, new in zip(after, before, added, strict=True):
            np.testing.assert_array_equal(got, np.concatenate([had[kept], new]))


def test_lists_that_knear_refuses(rows):
    """What knear.faiss checks before, said again where the rows are kept."""
    for string, kept, kind in (("IVF4,Flat", rows, "f32"), ("IVF4,SQ8", rows.view(np.uint8), "u8")):
        index = ours.index_factory(12, string)
        index.train(rows)
        index.add(rows[:50])
        made = index._index().index._index
        some = np.ascontiguousarray(kept[:3, :12])
        for lists, width, message in (
            (np.array([0, 4, 1]), 12, "lists hold 4, but the index has 4 of them"),
            (np.array([0, -1, 1]), 12, "lists hold -1, but"),
            (np.array([0, 1]), 12, "lists are 2 for 3 rows"),
            (None, 12, "lists are 0 for 3 rows"),
            (np.array([0, 1, 2]), 11, "rows are .* with 11 columns, but index IVF4,.* keeps 12"),
        ):
            with pytest.raises(knear.Error, match=message):
                made.add_to_lists(np.ascontiguousarray(some[:, :width]), kind, lists, 0)
        settings = _options.settings({}, 0, None, "cpu")
        for lists, message in (
            ([[0, 5], [1, 2]], "lists hold 5, but the index has 4 of them"),
            ([[0, 1], [2, 2]], "lists hold 2 twice for query 1"),
            ([[0, 1]], "lists are 1 rows, queries are 2"),
        ):
            with pytest.raises(knear.Error, match=message):
                made.search_lists(
                    rows[:2], "f32", np.array(lists), 3, settings, None, None, 0, None
                )
        assert made.size == 50


def test_quantizers_that_do_not_reconstruct(rows):
    """A whitened PCA before the centroids: indexes with the same quantizer object are merged, and
    of others it is said why not."""

    def listed(quantizer):
        quantizer.train(rows)
        index = ours.IndexIVFFlat(quantizer, 12, 4)
        index.train(rows)
        index.add(rows[:100])
        return index

    def whitened():
        return ours.IndexPreTransform(ours.PCAMatrix(12, 6, -0.5), ours.IndexFlatL2(6))

    index, other = listed(whitened()), listed(whitened())
    with refused(match="the quantizer, an IndexPreTransform, does not reconstruct its centroids"):
        index.merge_from(other, 100)
    same = listed(index.quantizer)
    index.merge_from(same, 100)
    assert (index.ntotal, same.ntotal) == (200, 0)


def test_members_of_lists_that_are_named(rows):
    index = ours.index_factory(12, "IVF4,Flat")
    for name in ("codes", "ids"):
        assert not hasattr(index.invlists, name)
        with pytest.raises(NotImplementedError, match=r"get_codes\(list_no\)"):
            getattr(index.invlists, name)
    datasets = importlib.import_module("knear.faiss.contrib.datasets")
    for name in ("DatasetSIFT1M", "DatasetBigANN", "dataset_from_name"):
        with pytest.raises(NotImplementedError, match=r"knear\.read_vectors"):
            getattr(datasets, name)()
    assert not hasattr(datasets, "DatasetOfNobody")


@pytest.mark.parametrize("string", ["IVF4,Flat", "IVF4,SQ8", "IVF4,PQ4x4np", "Flat"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_rows(rows, string, value):
    """The error is about the rows that are added, not about queries that nobody made."""
    index = ours.index_factory(12, string)
    index.train(rows)
    x = rows[:5].copy()
    x[3, 2] = value
    with refused(match="(x|vectors) must be finite.*row 3 column 2"):
        index.add(x)
    assert index.ntotal == 0


def test_whitening_of_rows_in_fewer_dimensions():
    """Components without variance are nothing, rather than rounding errors of length 1."""
    random = np.random.default_rng(1)
    x = (random.standard_normal((500, 4)) @ random.standard_normal((4, 12))).astype(np.float32)
    pca = ours.PCAMatrix(12, 12, -0.5)
    pca.train(x)
    y = pca.apply(x)
    np.testing.assert_allclose(np.square(y[:, :4]).sum(0, np.float64), 1, rtol=1e-3)
    assert np.abs(y[:, 4:]).max() < 1e-6
    index = ours.index_factory(12, "PCAW12,Flat")
    index.train(x)
    index.add(x)
    assert (index.search(x, 1)[1].ravel() == np.arange(500)).all()


def test_principal_components_of_fewer_rows_than_columns():
    """The products of the rows are decomposed; of all columns it took minutes."""
    x = np.random.default_rng(1).standard_normal((30, 80)).astype(np.float32)
    pca = ours.PCAMatrix(80, 25)
    pca.train(x)
    apart = x - x.mean(0)
    values = np.square(np.linalg.svd(apart.astype(np.float64), compute_uv=False))
    y = pca.apply(x)
    np.testing.assert_allclose(np.square(y).sum(0, np.float64), values[:25], rtol=1e-4)
    a = ours.vector_to_array(pca.A).reshape(25, 80)
    np.testing.assert_allclose(a @ a.T, np.eye(25), atol=1e-5)
    white = knear.PCA(25, whiten=True).train(x).apply(x)
    np.testing.assert_allclose(white.std(0), 1, rtol=1e-3)


def test_whitening_of_equal_rows_is_refused():
    x = np.ones((40, 6), np.float32)
    words = "rows do not vary, so that whitening would divide by nothing"
    with refused(match=words):
        ours.PCAMatrix(6, 3, -0.5).train(x)
    with pytest.raises(knear.InvalidArgument, match=words):
        knear.PCA(3, whiten=True).train(x)


def test_what_runs_on_the_processor(rows):
    with pytest.warns(UserWarning, match="gpu=True.* runs on the processor"):
        km = ours.Kmeans(12, 3, gpu=True)
    km.train(rows[:300])
    assert km.centroids.shape == (3, 12)


def test_small_things_of_faiss(rows):
    for make in (ours.IndexFlatL2, ours.IndexFlatIP):
        with refused(match="d, the number of columns, must be 1 at least, but is 0"):
            make()
    with pytest.raises(TypeError, match="index must be an index of knear.faiss, but is NoneType"):
        ours.write_index(None, "nowhere.faiss")
    same = [ours.MatrixStats(rows[:50]).hash_value for _ in range(2)]
    assert same[0] == same[1] != ours.MatrixStats(rows[1:51]).hash_value
    table = ours.MapInt64ToInt64(4)
    table.add(np.array([7, -3, 7]), np.array([1, 2, 3]))
    assert table.search(np.array([7, -3, 4])).tolist() == [3, 2, -1]
    with refused(match="places for 4 keys, but they would be 5"):
        table.add(np.arange(3) + 100, np.arange(3))
    assert table.search(np.array([100])).tolist() == [-1]


@pytest.mark.parametrize(
    ("string", "way"),
    [
        ("ZnLattice3x10_6", "such codes are not there"),
        ("FlatL2Panorama8", "Flat leaves out what a bound rules out"),
        ("PQ4,RefinePanorama(8)", "Flat leaves out what a bound rules out"),
        ("IVF10(Index1),Flat", "named by its own string"),
        ("IVF16_SOAR,Flat", r"knear\.Index\('IVF1024_SOAR,Flat'\)"),
        ("Graph32", r"knear\.Index\('Graph32'\)"),
    ],
)
def test_strings_whose_way_is_named(string, way):
    with pytest.raises(NotImplementedError, match=way):
        ours.index_factory(12, string)


def test_places_of_ids():
    """Those of a dictionary, while ids are added, some of them twice, and looked up in between."""
    random = np.random.default_rng(1)
    vector, places = ours.vectors.IdVector(), {}
    vector._FEW = 8
    for count in (0, 5, 1, 1, 300, 1, 7, 40, 2):
        new = random.integers(-50, 400, count)
        places.update(zip(new.tolist(), range(len(vector), len(vector) + count), strict=True))
        vector.append(new)
        asked = random.integers(-60, 420, int(random.choice([3, 200])))  # few and many at once
        expected = [places.get(each, -1) for each in asked.tolist()]
        assert vector.places_of(asked).tolist() == expected
    vector.array = vector.array[::2].copy()
    places = {each: place for place, each in enumerate(vector.array.tolist())}
    assert vector.places_of(asked).tolist() == [places.get(each, -1) for each in asked.tolist()]


@pytest.mark.parametrize("scale", [1, 10**12])
def test_sets_of_ids_near_and_far(scale):
    random = np.random.default_rng(1)
    chosen = random.integers(-500, 500, 300) * scale
    some = ours.IDSelectorBatch(chosen)
    asked = random.integers(-900, 900, 1000) * scale
    assert (some._table is None) == (scale > 1)
    assert some.mask(asked).tolist() == [each in set(chosen.tolist()) for each in asked.tolist()]
    assert some.n == len(set(chosen.tolist())) and not some.is_member(
        7 * scale + 1 if scale > 1 else 501
    )
    nothing = ours.IDSelectorBatch(np.empty(0, np.int64))
    assert nothing.n == 0 and not nothing.mask(asked).any()
