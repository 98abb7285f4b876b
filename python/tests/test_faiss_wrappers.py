"""knear.faiss: indexes around others that give ids, IndexIDMap, or measure again, IndexRefine."""

import numpy as np
import pytest
from faiss_pair import METRICS, asked, ours, refused, same, sets


def test_id_maps(rows, faiss):
    index = faiss.IndexIDMap(faiss.IndexFlatL2(12))
    with refused():
        index.add(rows)
    index.add_with_ids(rows[:100], np.arange(100) * 10)
    index.add_with_ids(rows[100:101], np.array([10]))
    assert index.search(rows[[1, 100]], 1)[1].ravel().tolist() == [10, 10]
    with refused():
        index.reconstruct(10)
    assert index.remove_ids(np.array([10, 20, 999999])) == 3
    assert index.search(rows[3:4], 1)[1][0, 0] == 30
    assert faiss.vector_to_array(index.id_map)[:3].tolist() == [0, 30, 40]
    two = faiss.IndexIDMap2(faiss.IndexFlatL2(12))
    two.add_with_ids(rows[:100], np.arange(100) * 10)
    np.testing.assert_array_equal(two.reconstruct(50), rows[5])
    np.testing.assert_array_equal(two.reconstruct_batch([0, 990]), rows[[0, 99]])
    with refused():
        two.reconstruct(51)
    two.remove_ids(np.array([0]))
    np.testing.assert_array_equal(two.reconstruct(50), rows[5])
    two.check_consistency()
    begin, _, ids = two.range_search(rows[5:6], 1e-6)
    assert ids.tolist() == [50]
    full = faiss.IndexFlatL2(12)
    full.add(rows)
    with refused():
        faiss.IndexIDMap(full)
    other = faiss.IndexIDMap2(faiss.IndexFlatL2(12))
    other.add_with_ids(rows[:5], np.arange(5) + 7000)
    two.merge_from(other)
    assert two.ntotal == 104 and other.ntotal == 0
    np.testing.assert_array_equal(two.reconstruct(7004), rows[4])


@pytest.mark.parametrize("inner", ["Flat", "IVF20,Flat", "PCA8,IVF20,SQ8", "IVF20,PQ4np,RFlat"])
def test_id_maps_of_lists_keep_their_ids(rows, inner):
    """FAISS's map is wrong after a removal from lists, whose ids do not move."""
    pair = []
    for begin in (0, 2000):
        index = ours.index_factory(12, f"IDMap2,{inner}")
        index.train(rows)
        index.add_with_ids(rows[begin : begin + 1000], np.arange(begin, begin + 1000))
        lists = ours.try_extract_index_ivf(index)
        if lists is not None:
            lists.nprobe = 20
        assert index.remove_ids(np.arange(begin, begin + 500)) == 500
        assert index.remove_ids(np.arange(begin + 990, begin + 1000)) == 10
        pair.append(index)
    pair[0].merge_from(pair[1])
    assert (pair[0].ntotal, pair[1].ntotal) == (980, 0)
    pair[0].index.own_fields = True
    for begin in (500, 2500):
        near_by = pair[0].search(rows[begin : begin + 490], 5)[1]
        assert (near_by == np.arange(begin, begin + 490)[:, None]).any(1).mean() > 0.95


def test_refine(rows, faiss):
    base = faiss.IndexScalarQuantizer(12, faiss.ScalarQuantizer.QT_4bit)
    index = faiss.IndexRefineFlat(base)
    index.train(rows)
    index.add(rows)
    index.k_factor = 10
    flat = faiss.IndexFlatL2(12)
    flat.add(rows)
    same(index.search(rows[:30], 4), flat.search(rows[:30], 4))
    np.testing.assert_array_equal(index.reconstruct(9), rows[9])
    params = faiss.IndexRefineSearchParameters(k_factor=1)
    assert index.search(rows[:30], 4, params=params)[1].shape == (30, 4)
    with refused():
        index.search(rows[:3], 4, params=faiss.SearchParametersIVF())
    inner = faiss.index_factory(12, "IVF20,PQ4np,RFlat")
    inner.train(rows)
    inner.add(rows)
    faiss.ParameterSpace().set_index_parameters(inner, "nprobe=20,k_factor_rf=30")
    assert faiss.extract_index_ivf(inner).nprobe == 20 and inner.k_factor == 30
    params = faiss.IndexRefineSearchParameters(
        k_factor=40, base_index_params=faiss.IVFPQSearchParameters(nprobe=20)
    )
    same(inner.search(rows[:30], 1, params=params), flat.search(rows[:30], 1))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("base", ["SQ4", "PQ4np", "IVF20,SQ8", "PCA8,IVF20,Flat", "SQ4,RFlat"])
def test_refined_ranges(rows, base, metric):
    """Of those that the base has within k_factor times the radius, those that are within it,
    in order of adding."""
    index = ours.index_factory(12, f"{base},RFlat", metric)
    index.train(rows)
    index.add(rows)
    asked(ours, index)
    queries = rows[:50] + np.float32(0.05)
    radius = 1.0 if metric else 15.0
    sign = 1 if metric else -1
    exact = ours.pairwise_distances(queries, rows, metric)
    some = ours.IDSelectorRange(100, 900)
    index.k_factor = 1.5 if metric else 0.8
    few = ours.IndexRefineSearchParameters(sel=some)
    for params, first, last, factor in ((None, 0, 3000, index.k_factor), (few, 100, 900, 1)):
        near_by = sets(index.base_index.range_search(queries, radius * factor))
        begin, distances, ids = index.range_search(queries, radius, params=params)
        assert begin[-1] == len(ids) > 0
        for i in range(50):
            part = slice(int(begin[i]), int(begin[i + 1]))
            clear = np.flatnonzero(sign * exact[i] < sign * radius)
            assert set(ids[part].tolist()) == near_by[i] & set(clear) & set(range(first, last))
            np.testing.assert_allclose(distances[part], exact[i][ids[part]], rtol=1e-6)
            assert (np.diff(ids[part]) > 0).all()
    with refused():
        index.range_search(queries, radius, params=ours.SearchParametersIVF())


def test_refined_lists_are_merged(rows):
    """The ids of the base go on behind those that are there, as those of the refined vectors."""
    pair = []
    for begin in (0, 1000):
        index = ours.index_factory(12, "IVF20,SQ8,RFlat")
        index.train(rows)
        index.add(rows[begin : begin + 1000])
        ours.extract_index_ivf(index).nprobe = 20
        pair.append(index)
    pair[0].merge_from(pair[1])
    assert (pair[0].ntotal, pair[1].ntotal, pair[1].base_index.ntotal) == (2000, 0, 0)
    assert (pair[0].search(rows[:2000], 1)[1].ravel() == np.arange(2000)).all()
