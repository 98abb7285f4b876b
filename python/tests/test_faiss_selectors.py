"""knear.faiss: IDSelector in the searches of each kind of index, alone and around others,
which have to hand it on."""

import numpy as np
import pytest
from faiss_pair import (
    METRICS,
    across,
    asked,
    index_module,
    near,
    near_sets,
    needs_faiss,
    ours,
    refused,
    selectors,
    sets,
    theirs,
)


def selecting(module, index, sel):
    """Parameters with a selector for that kind of index, with probes for lists."""
    if isinstance(index, module.IndexPreTransform):
        inner = selecting(module, module.downcast_index(index.index), sel)
        return module.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, module.IndexRefine):
        inner = selecting(module, module.downcast_index(index.base_index), sel)
        return module.IndexRefineSearchParameters(k_factor=1.5, base_index_params=inner)
    if isinstance(index, module.IndexIVF):
        return module.SearchParametersIVF(sel=sel, nprobe=4)
    return module.SearchParameters(sel=sel)


@needs_faiss
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "kind",
    ["Flat", "IDMap,Flat", "SQfp16", "SQ8", "IVF20,Flat", "IVF20,SQ8", "IVF20,PQ4np",
     "IDMap,IVF20,SQ8", "PCA8,IVF20,Flat", "IVF20,SQ8,RFlat"],
)  # fmt: skip
def test_selectors(rows, kind, metric):
    """In search and range search."""
    pair = [theirs.index_factory(12, kind, metric)]
    pair[0].train(rows)
    if kind.startswith("IDMap"):
        pair[0].add_with_ids(rows, np.arange(3000)[::-1].copy())
    else:
        pair[0].add(rows)
    pair.append(across(ours, pair[0]))
    radius = 2.0 if metric else 12.0
    for name in selectors(ours):
        found, ranges = [], []
        for index in pair:
            module = index_module(index)
            every = selectors(module)
            sel = every[name]
            assert [sel.is_member(i) for i in (0, 102, 899, 900)] == [
                selectors(ours)[name].is_member(i) for i in (0, 102, 899, 900)
            ]
            inner = index.index if kind.startswith("IDMap") else index
            params = selecting(module, module.downcast_index(inner), sel)
            found.append(index.search(rows[:50], 8, params=params))
            ranges.append(index.range_search(rows[:50], radius, params=params))
        near(*found, kind)
        near_sets(*ranges, radius, metric)
        assert (len(ranges[1][2]) == 0) == (name == "none")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["PQ4np", "IDMap,PQ4np", "PQ4x6np"])
def test_selectors_of_product_codes(rows, kind, metric):
    """FAISS refuses them: those of all neighbours that are selected."""
    index = ours.index_factory(12, kind, metric)
    index.train(rows)
    if kind.startswith("IDMap"):
        index.add_with_ids(rows, np.arange(3000)[::-1].copy())
    else:
        index.add(rows)
    every = index.search(rows[:20], 3000)[1]
    radius = 2.0 if metric else 12.0
    inside = sets(index.range_search(rows[:20], radius))
    for name, sel in selectors(ours).items():
        params = ours.SearchParameters(sel=sel)
        ids = index.search(rows[:20], 8, params=params)[1]
        allowed = set(np.flatnonzero(sel.mask(np.arange(3000))).tolist())
        for row, found in zip(every, ids, strict=True):
            expected = row[np.isin(row, list(allowed))][:8]
            np.testing.assert_array_equal(found, np.append(expected, [-1] * (8 - len(expected))))
        begin, distances, ids = index.range_search(rows[:20], radius, params=params)
        assert sets((begin, distances, ids)) == [each & allowed for each in inside]
        assert (len(ids) == 0) == (name == "none")


@pytest.mark.parametrize(
    "string", ["IVF20,SQ8", "PQ4np", "PCA8,IVF20,Flat", "SQ4,RFlat", "L2norm,PQ4np", "SQ8"]
)
@pytest.mark.parametrize("ids", ["", "IDMap,"])
def test_selectors_of_refined(rows, ids, string):
    """The base gets the selector in parameters of its own, with what is set on it otherwise."""
    index = ours.index_factory(12, f"{ids}{string},RFlat")
    index.train(rows)
    if ids:
        index.add_with_ids(rows, np.arange(3000)[::-1].copy())
    else:
        index.add(rows)
    refined = index.index if ids else index
    asked(ours, refined)
    asked(ours, refined.base_index)
    params = ours.IndexRefineSearchParameters(sel=ours.IDSelectorRange(100, 900), k_factor=50)
    found = index.search(rows[:100], 5, params=params)[1]
    assert found.min() >= 100 and found.max() < 900
    refined.k_factor = 50
    every = index.search(rows[:100], 100)[1]
    share = []
    for row, some in zip(every, found, strict=True):
        allowed = row[(row >= 100) & (row < 900)][:5]
        share.append(np.isin(allowed, some).mean() if len(allowed) else 1)
    assert np.mean(share) > 0.95, np.mean(share)
    twice = ours.IndexRefineSearchParameters(
        sel=ours.IDSelectorAll(),
        base_index_params=refined.base_index._selecting(None, ours.IDSelectorAll()),
    )
    with refused(match="twice"):
        index.search(rows[:5], 5, params=twice)


def test_selectors_that_are_translated_already(rows, faiss):
    ids = np.arange(3000) * 7
    index = faiss.index_factory(12, "IDMap,Flat")
    index.add_with_ids(rows, ids)
    wanted = faiss.IDSelectorBatch(ids[::3])
    found = [
        index.search(rows[:9], 4, params=faiss.SearchParameters(sel=selector))
        for selector in (wanted, faiss.IDSelectorTranslated(index, wanted))
    ]
    np.testing.assert_array_equal(found[0][1], found[1][1])


@needs_faiss
@pytest.mark.parametrize("size", [0, 1, 2, 3, 17, 64])
def test_what_selectors_hold(size):
    ids, bits = np.arange(size) * 7, np.arange(size, dtype=np.uint8)
    for a, b in ((ours.IDSelectorArray(ids), theirs.IDSelectorArray(ids)),
                 (ours.IDSelectorBitmap(bits), theirs.IDSelectorBitmap(bits))):  # fmt: skip
        assert a.n == b.n == size
    np.testing.assert_array_equal(ours.rev_swig_ptr(ours.IDSelectorArray(ids).ids, size), ids)
    np.testing.assert_array_equal(ours.IDSelectorBitmap(bits).bitmap, bits)
    assert ours.IDSelectorBatch(ids).nbits == theirs.IDSelectorBatch(ids).nbits
    assert not hasattr(ours.IDSelectorBatch(ids), "ids")
    both = np.array([3, 3, 4])
    assert ours.IDSelectorArray(both).n == theirs.IDSelectorArray(both).n == 3


def test_selectors_of_numbers_that_are_no_ids():
    for bad in (lambda: ours.IDSelectorRange(1.7, 3), lambda: ours.IDSelectorRange(1, 3.0),
                lambda: ours.IDSelectorBitmap(np.array([1.7]))):  # fmt: skip
        with pytest.raises(TypeError):
            bad()
    assert ours.IDSelectorRange(np.int64(1), 3).is_member(2)
