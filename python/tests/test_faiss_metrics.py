"""knear.faiss.IndexFlat by the metrics beside L2 and inner products, with FAISS's."""

import numpy as np
import pytest
from faiss_pair import across, needs_faiss, ours, refused, same, sets, theirs

METRICS = {
    "L1": ours.METRIC_L1,
    "Linf": ours.METRIC_Linf,
    "Lp": ours.METRIC_Lp,
    "Canberra": ours.METRIC_Canberra,
    "BrayCurtis": ours.METRIC_BrayCurtis,
    "JensenShannon": ours.METRIC_JensenShannon,
    "Jaccard": ours.METRIC_Jaccard,
    "NaNEuclidean": ours.METRIC_NaNEuclidean,
    "GOWER": ours.METRIC_GOWER,
}
pytestmark = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@pytest.fixture
def vectors(rows, metric):
    """Numbers from 0 to 1, with gaps where the metric takes them."""
    x = np.abs(np.sin(rows[:600])) + np.float32(0.01)
    x = x.clip(0, 1)
    if metric in (ours.METRIC_NaNEuclidean, ours.METRIC_GOWER):
        x[3, 5] = x[300, :4] = x[7] = np.nan
    return x


def filled(module, metric, x):
    index = module.IndexFlat(12, metric)
    index.metric_arg = 1.5
    index.add(x)
    return index


@needs_faiss
def test_searches(vectors, metric):
    pair = [filled(module, metric, vectors) for module in (ours, theirs)]
    assert pair[0].metric_type == metric and pair[0].ntotal == 600
    q = vectors[:40]
    found = [index.search(q, 7) for index in pair]
    same(*found)
    same(*(index.search(q[:3], 700) for index in pair))
    radius = float(np.median(found[1][0][:, 4]))
    ranges = [index.range_search(q, radius) for index in pair]
    clear = [np.abs(each[1] - radius) > 1e-4 for each in ranges]
    assert abs(int(clear[0].sum()) - int(clear[1].sum())) <= 2
    assert [a.dtype for a in ranges[0]] == [a.dtype for a in ranges[1]]
    if all(each.all() for each in clear):
        assert sets(ranges[0]) == sets(ranges[1])
    inside = ranges[0][1] > radius if metric == ours.METRIC_Jaccard else ranges[0][1] < radius
    assert inside.all() and inside.size
    computer = pair[0].get_distance_computer()
    computer.set_query(q[0])
    assert computer(int(found[0][1][0, 2])) == found[0][0][0, 2]


def test_it_is_a_search_of_all(vectors, metric):
    """range_search and search say what pairwise_distances does, in blocks, and by ids."""
    index = filled(ours, metric, vectors)
    table = ours.pairwise_distances(vectors[:30], vectors, metric, 1.5)
    distances, ids = index.search(vectors[:30], 5)
    for i in range(30):
        there = ids[i] >= 0
        np.testing.assert_array_equal(distances[i, there], table[i, ids[i, there]])
        sign = -1 if ours.is_similarity_metric(metric) else 1
        key = np.where(np.isfinite(table[i]), sign * table[i], np.inf)
        order = np.argsort(key, kind="stable")[:5]
        np.testing.assert_array_equal(ids[i, there], order[np.isfinite(key[order])])
    only = ours.SearchParameters(sel=ours.IDSelectorRange(100, 200))
    found = index.search(vectors[:30], 3, params=only)[1]
    assert ((found < 0) | ((found >= 100) & (found < 200))).all() and found.max() >= 100
    _, _, found = index.range_search(vectors[:30], 0.9, params=only)
    assert ((found >= 100) & (found < 200)).all()


def test_rows_come_and_go(vectors, metric, faiss):
    index = filled(faiss, metric, vectors)
    assert index.remove_ids(np.arange(10, 20)) == 10
    np.testing.assert_array_equal(index.reconstruct(10), vectors[20])
    assert index.search(vectors[20:21], 1)[1][0, 0] == 10
    other = filled(faiss, metric, vectors[:5])
    index.merge_from(other)
    assert (index.ntotal, other.ntotal) == (595, 0)
    index.reset()
    assert index.search(vectors[:1], 2)[1].tolist() == [[-1, -1]]
    mapped = faiss.IndexIDMap2(faiss.IndexFlat(12, metric))
    mapped.index.metric_arg = mapped.metric_arg = 1.5
    mapped.add_with_ids(vectors[20:60], np.arange(40) * 3)
    assert mapped.search(vectors[30:31], 1)[1][0, 0] == 30


@needs_faiss
def test_files(vectors, metric):
    """Byte by byte those of FAISS."""
    pair = [filled(module, metric, vectors) for module in (ours, theirs)]
    data = [
        module.serialize_index(index) for module, index in zip((ours, theirs), pair, strict=True)
    ]
    np.testing.assert_array_equal(*data)
    for made in (across(ours, pair[1]), ours.clone_index(pair[0]), across(ours, pair[0])):
        assert (made.metric_type, made.metric_arg) == (metric, 1.5)
        same(made.search(vectors[:9], 5), pair[0].search(vectors[:9], 5))


def test_what_has_no_such_metric(rows, metric):
    flat = ours.IndexFlat(12, metric)
    assert ours.index_factory(12, "Flat", metric).metric_type == metric
    for make in (
        lambda: ours.IndexPQ(12, 4, 8, metric),
        lambda: ours.IndexScalarQuantizer(12, 0, metric),
        lambda: ours.IndexIVFFlat(flat, 12, 20, metric),
        lambda: ours.index_factory(12, "IVF20,Flat", metric),
        lambda: ours.IndexIVFFlat(flat, 12, 20).train(rows),
        lambda: ours.Clustering(12, 20).train(rows, flat),
        lambda: ours.IndexRefineFlat(flat),
    ):
        with pytest.raises(NotImplementedError, match="metric"):
            make()
    with refused(match="row 0 column 2"):
        flat.add(np.full((1, 12), [1, 1, np.inf] + 9 * [1], np.float32))
