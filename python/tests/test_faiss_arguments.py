"""knear.faiss: what every kind of index takes and refuses, as FAISS does: arguments, parameters,
another metric, and numbers that are not finite."""

import numpy as np
import pytest
from faiss_pair import across, asked, filled, index_module, needs_faiss, ours, refused, same, theirs


def test_arguments(rows, faiss):
    index = faiss.IndexFlatL2(12)
    index.add(rows.astype(np.float64))  # converted
    index.add(np.asfortranarray(rows[:, :12]))
    index.add(np.ones((1, 12), np.int32))
    assert index.ntotal == 6001
    with pytest.raises(ValueError):
        index.search(rows[0], 1)
    with pytest.raises(AssertionError):
        index.search(rows[:, :5], 1)
    with pytest.raises(AssertionError):
        index.add(rows[:, :5])
    with pytest.raises(AssertionError):
        index.search(rows, 0)
    with refused():
        index.add_with_ids(rows, np.arange(3000))
    with refused():
        index.reconstruct(6001)
    with pytest.raises(AttributeError):
        index.nprobe = 3
    distances, ids = np.empty((5, 3), np.float32), np.empty((5, 3), np.int64)
    found = index.search(rows[:5], 3, D=distances, I=ids)
    assert found[0] is distances and found[1] is ids and ids[:, 0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(AssertionError):
        index.search(rows[:5], 4, D=distances, I=ids)
    with refused():
        faiss.read_index("/no/such/file")
    with refused():
        faiss.index_factory(12, "FooBar")
    with refused():
        faiss.ParameterSpace().set_index_parameter(index, "nprobes", 3)
    with pytest.raises(AssertionError):
        faiss.SearchParametersIVF(nprob=3)
    with pytest.raises(AttributeError):
        faiss.Kmeans(12, 3, niterations=3)


def test_parameters_of_no_kind(rows, faiss):
    """What is none is refused, as is what an index cannot do by them."""
    index = faiss.IndexFlatL2(12)
    index.add(rows)
    some = faiss.IDSelectorRange(5, 9)
    for call, number in ((index.search, 1), (index.range_search, 0.5)):
        with pytest.raises(TypeError):
            call(rows[:3], number, params=some)
    with pytest.raises(TypeError):
        faiss.SearchParameters(sel=[1, 2])
    params = faiss.SearchParameters()
    with pytest.raises(TypeError):
        params.sel = np.arange(5)
    params.sel = None
    lists = faiss.index_factory(12, "IVF20,Flat")
    lists.train(rows)
    full = faiss.SearchParametersIVF(nprobe=20, ensure_topk_full=True)
    assert lists.search(rows[:3], 1, params=full)[1].max() == -1
    centroids = np.zeros((3, 1), np.int64), np.zeros((3, 1), np.float32)
    if faiss is ours:
        with refused(match="incorrect type"):
            lists.search_preassigned(rows[:3], 1, *centroids, params=ours.SearchParameters())
        with pytest.raises(NotImplementedError):
            lists.search(rows[:3], 1, params=faiss.SearchParametersIVF(max_empty_result_buckets=1))


@needs_faiss
@pytest.mark.parametrize("string", ["Flat", "SQ8", "IVF20,Flat", "IVF20,SQ8"])
def test_another_metric(rows, string):
    """Searches after metric_type is set are by that metric."""
    pair = [theirs.index_factory(12, string)]
    pair[0].train(rows)
    pair[0].add(rows)
    pair.append(across(ours, pair[0]))
    for metric in (0, 1):
        for index in pair:
            asked(index_module(index), index)
            index.search(rows[:1], 1)
            index.metric_type = metric
        if string != "IVF20,SQ8":  # whose codes of residuals FAISS measures by the other one
            same(*(index.search(rows[:50], 5) for index in pair))
        made = ours.deserialize_index(ours.serialize_index(pair[1]))
        asked(ours, made)
        same(made.search(rows[:50], 5), pair[1].search(rows[:50], 5))
    if string == "Flat":
        for index in pair:
            index.metric_type = ours.METRIC_L1
        same(*(index.search(rows[:50], 5) for index in pair))
    else:
        with pytest.raises(NotImplementedError):
            pair[1].metric_type = ours.METRIC_L1
    assert pair[1].ntotal == 3000


@pytest.mark.parametrize(
    "string, ids",
    [("Flat", False), ("SQ8", False), ("PCA8,Flat", False), ("SQ4,RFlat", False),
     ("IDMap,Flat", True), ("IVF20,Flat", True), ("PCA8,IVF20,Flat", True)],
)  # fmt: skip
def test_ids_of_merged(rows, faiss, string, ids):
    """add_id is for indexes that keep ids."""
    index = faiss.index_factory(12, string)
    index.train(rows)
    other = faiss.clone_index(index)
    if string.startswith("IDMap"):
        other.add_with_ids(rows[:5], np.arange(5))
    else:
        other.add(rows[:5])
    if not ids:
        with refused():
            index.merge_from(other, 5)
        assert (index.ntotal, other.ntotal) == (0, 5)
        return
    index.merge_from(other, 5)
    assert index.search(rows[:5], 1)[1].ravel().tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("string", ["Flat", "PQ4np", "SQ6", "SQfp16", "SQbf16", "IVF20,SQfp16"])
def test_no_rows(rows, string, faiss):
    index = faiss.index_factory(12, string)
    index.train(rows)
    index.add(rows[:0])
    assert index.ntotal == 0
    assert index.sa_encode(rows[:0]).shape == (0, index.sa_code_size())


@pytest.mark.parametrize(
    "string",
    ["Flat", "PQ4np", "SQ8", "SQ4", "SQ8_direct", "SQfp16", "SQbf16", "IVF20,SQ8", "IVF20,SQfp16",
     "PCA8,SQfp16", "SQ8,Refine(SQfp16)", "SQfp16,RFlat", "IDMap,SQbf16"],
)  # fmt: skip
def test_what_is_not_finite_is_refused(rows, string):
    """The error names the row, and nothing is stored."""
    index = ours.index_factory(12, string)
    index.train(rows)

    def add(x):
        if string.startswith("IDMap"):
            index.add_with_ids(x, np.arange(len(x)))
        else:
            index.add(x)

    values = [np.inf, -np.inf]
    if string in ("PQ4np", "SQ8", "SQ6", "SQfp16", "SQbf16"):  # codes are of numbers alone
        values.append(np.nan)
    if "16" in string:  # beyond what 16 bits hold
        values.append(3.4e38 if "bf16" in string else 200000)
    for value in values:
        bad = rows[:9].copy()
        bad[3, 2] = value
        with refused(match="row 3 column"):
            add(bad)
        if string.startswith("SQ"):
            with refused(match="row 3 column"):
                index.sa_encode(bad)
        assert index.ntotal == 0
    add(rows)
    assert index.search(rows[:5], 1)[1].min() >= 0


@pytest.mark.parametrize("string", ["Flat", "IVF20,Flat", "IVF20,SQ8", "PCA8,SQ8"])
def test_queries_of_nan_find_nothing(rows, string, faiss):
    index = filled(faiss, string, 1, rows)
    queries = rows[:6].copy()
    queries[4, 3] = np.nan
    distances, ids = index.search(queries, 3)
    assert (ids[4] == -1).all() and (ids[[0, 1, 2, 3, 5], 0] == [0, 1, 2, 3, 5]).all()
    assert (distances[4] == np.finfo(np.float32).max).all()
    begin, _, _ = index.range_search(queries, 1.0)
    assert begin[5] == begin[4] and begin[6] > begin[5]


@pytest.mark.parametrize("string", ["Flat", "IDMap2,Flat", "IVF20,Flat", "IVF20,SQ8"])
def test_vectors_of_nan_are_not_found(rows, string, faiss):
    x = rows[:900].copy()
    x[12, 3] = np.nan
    index = faiss.index_factory(12, string)
    index.train(rows)
    index.add_with_ids(x, np.arange(900)) if "IDMap" in string else index.add(x)
    faiss.ParameterSpace().set_index_parameters(index, "nprobe=20" if "IVF" in string else "")
    assert index.ntotal == 900
    _, ids = index.search(rows[:20], 900)
    assert (ids != 12).all() and (ids[:, :899] >= 0).all()
    assert (index.range_search(rows[12:13], 1e9)[2] != 12).all()
    if string == "Flat":
        np.testing.assert_array_equal(index.reconstruct_n(0, 900), x)
        again = faiss.deserialize_index(faiss.serialize_index(index))
        assert (again.search(rows[12:13], 5)[1] != 12).all()
        index.remove_ids(np.arange(12))
        assert np.isnan(index.reconstruct(0)).any() and index.search(rows[12:13], 1)[1] != 0


def test_a_negative_size_is_refused_when_it_is_set(rows, faiss):
    lists = faiss.index_factory(12, "IVF20,Flat")
    for of in (lists, faiss.SearchParametersIVF()):
        for name in ("nprobe", "max_codes"):
            with pytest.raises(OverflowError):
                setattr(of, name, -1)
    with pytest.raises((OverflowError, AssertionError)):
        faiss.SearchParametersIVF(nprobe=-1)
    assert lists.nprobe == 1


def test_no_neighbours_at_all(rows, faiss):
    """k = 0 of functions, no queries of range searches."""
    for metric in (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L1):
        for each in faiss.knn(rows[:3], rows, 0, metric):
            assert each.shape == (3, 0)
    for each in (*faiss.kmin(rows, 0), *faiss.kmax(rows, 0)):
        assert each.shape == (3000, 0)
    index = faiss.IndexFlatL2(12)
    index.add(rows)
    begin, distances, ids = index.range_search(rows[:0], 1.0)
    assert (begin.tolist(), begin.dtype, distances.dtype) == ([0], np.uint64, np.float32)
    assert ids.shape == (0,)
    if faiss is ours:
        assert ids.dtype == np.int64


def test_lists_that_are_not_trained_are_not_merged(rows, faiss):
    pair = [faiss.index_factory(12, "IVF20,Flat") for _ in range(2)]
    pair[0].train(rows)
    for a, b in (pair, pair[::-1]):
        with pytest.raises(RuntimeError):
            a.check_compatible_for_merge(b)
