"""knear.faiss.IndexFlat beside FAISS's: its searches, and ids that move up. The one whose
answers others are compared with."""

import numpy as np
import pytest
from faiss_pair import METRICS, index_module, needs_faiss, ours, same, sets, theirs


@needs_faiss
@pytest.mark.parametrize("metric", METRICS)
def test_flat(rows, metric):
    pair = [module.IndexFlat(12, metric) for module in (ours, theirs)]
    for index in pair:
        assert (index.d, index.ntotal, index.is_trained, index.metric_type) == (12, 0, True, metric)
        index.add(rows)
    same(*(index.search(rows[:99], 7) for index in pair))
    same(*(index.search(rows[:2], 3500) for index in pair))
    radius = 2.0 if metric else 15.0
    found = [index.range_search(rows[:50], radius) for index in pair]
    assert sets(found[0]) == sets(found[1]) and [a.dtype for a in found[0]] == [
        a.dtype for a in found[1]
    ]
    for index in pair:
        assert index.remove_ids(np.array([3, 4, 900, 77777])) == 3
        assert index.remove_ids(index_module(index).IDSelectorRange(10, 20)) == 10
        assert index.ntotal == 2987
    same(*(index.search(rows[:99], 7) for index in pair))
    for index in pair:
        index.add(rows[:5])
    same(*(index.search(rows[50:99], 7) for index in pair))
    for name, *arguments in (
        ("reconstruct", 2986),
        ("reconstruct_n", 5, 10),
        ("reconstruct_n", 100),
        ("reconstruct_batch", [5, 2, 5]),
        ("sa_encode", rows[:3]),
    ):
        a, b = (getattr(index, name)(*arguments) for index in pair)
        np.testing.assert_array_equal(a, b)
    a, b = (index.search_and_reconstruct(rows[50:60], 3) for index in pair)
    same(a[:2], b[:2])
    np.testing.assert_array_equal(a[2], b[2])


def test_flat_shifts_ids(rows, faiss):
    index = faiss.IndexFlatL2(12)
    index.add(rows[:100])
    index.remove_ids(np.arange(10))
    assert index.search(rows[10:12], 1)[1].ravel().tolist() == [0, 1]
    index.add(rows[:1])
    assert index.search(rows[:1], 1)[1][0, 0] == 90
    other = faiss.IndexFlatL2(12)
    other.add(rows[200:300])
    index.merge_from(other)
    assert (index.ntotal, other.ntotal) == (191, 0)
    assert index.search(rows[200:201], 1)[1][0, 0] == 91
    index.reset()
    assert index.ntotal == 0 and index.search(rows[:1], 2)[1].tolist() == [[-1, -1]]


def test_distances_are_never_negative(rows):
    far = rows + np.float32(1e4)
    index = ours.IndexFlatL2(12)
    index.add(far)
    distances, ids = index.search(far, 1)
    assert (distances == 0).all() and (ids.ravel() == np.arange(3000)).all()


def test_entries_are_permuted(rows, faiss):
    order = np.random.default_rng(1).permutation(500)
    for index in (faiss.IndexFlatL2(12), faiss.index_factory(12, "SQ8")):
        index.train(rows)
        index.add(rows[:500])
        before = index.reconstruct_n()
        index.permute_entries(order)
        np.testing.assert_array_equal(index.reconstruct_n(), before[order])


def test_codes_are_not_written_to(rows):
    index = ours.IndexFlatL2(12)
    index.add(rows)
    codes = ours.vector_to_array(index.codes)
    np.testing.assert_array_equal(codes.view(np.float32).reshape(-1, 12), rows)
    with pytest.raises(NotImplementedError, match="add_sa_codes"):
        ours.copy_array_to_vector(codes, index.codes)


@pytest.mark.parametrize(
    "kind", ["IndexFlat", "IndexFlatL2", "IndexFlatIP", "IndexPQ", "IndexScalarQuantizer"]
)
def test_an_index_without_columns_is_refused_with_advice(kind):
    """FAISS makes one of 0 columns, for read_index of its own to fill."""
    message = rf"d, the number of columns, must be .* is 0: {kind}\(d\) names it, read_index\(\) "
    with pytest.raises(RuntimeError, match=message):
        getattr(ours, kind)()


def test_nothing_is_not_copied():
    for copy in (
        ours.clone_index,
        ours.clone_Quantizer,
        ours.Cloner().clone_Index,
        ours.Cloner().clone_VectorTransform,
    ):
        with pytest.raises(RuntimeError, match="is None, which cannot be copied"):
            copy(None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("string", ["Flat", "SQ8", "IVF4,Flat", "IVF4,SQ8"])
def test_large_numbers_and_nan_warn_of_nothing(string):
    """Sums of squares by which NaN and infinities are looked for may overflow."""
    x = np.random.default_rng(1).standard_normal((300, 8)).astype(np.float32)
    index = ours.index_factory(8, string)
    index.train(x)
    index.add(x)
    queries = x[:3].copy()
    queries[1] *= np.float32(1e30)
    queries[2, 0] = np.nan
    assert (index.search(queries, 2)[1][2] == -1).all()
    if string != "SQ8":
        index.add(queries[1:2])
