"""knear.faiss.IndexIVF beside FAISS's: lists, their rows and ids, and which a search looks at."""

import numpy as np
import pytest
from faiss_pair import (
    METRICS,
    across,
    filled,
    index_module,
    near_sets,
    needs_faiss,
    ours,
    refused,
    same,
    selectors,
    sets,
    theirs,
)


def lists_of(index, module):
    """The ids of each list, in any order."""
    lists, out = index.invlists, []
    for number in range(lists.nlist):
        size = lists.list_size(number)
        ids = module.rev_swig_ptr(lists.get_ids(number), size) if size else []
        out.append(set(np.asarray(ids).tolist()))
    return out


def pair_of_lists(rows, metric=1, lists=20):
    """Both, with the same centroids."""
    quantizer = theirs.IndexFlat(12, metric)
    a = theirs.IndexIVFFlat(quantizer, 12, lists, metric)
    a.train(rows)
    quantizer2 = ours.IndexFlat(12, metric)
    quantizer2.add(quantizer.reconstruct_n(0, lists))
    b = ours.IndexIVFFlat(quantizer2, 12, lists, metric)
    assert b.is_trained
    return b, a


@needs_faiss
@pytest.mark.parametrize("metric", METRICS)
def test_inverted_lists(rows, metric):
    pair = list(pair_of_lists(rows, metric))
    for index in pair:
        assert (index.nlist, index.nprobe, index.ntotal) == (20, 1, 0)
        assert (index.cp.niter, index.cp.spherical) == (10, metric == 0)
        index.add(rows[:2000])
    same(*(index.search(rows[:60], 5) for index in pair))
    for index in pair:
        index.add(rows[2000:])
        index.nprobe = 3
    assert lists_of(pair[0], ours) == lists_of(pair[1], theirs)
    same(*(index.search(rows[:60], 5) for index in pair))
    for index in pair:
        assert index.remove_ids(np.arange(0, 3000, 3)) == 1000
        index.add(rows[:7])  # ids from ntotal on, which are there already
        index.add_with_ids(rows[7:9], np.array([70001, 70001]))
        assert index.ntotal == 2009
    assert lists_of(pair[0], ours) == lists_of(pair[1], theirs)
    queries = rows[100:160]
    same(*(index.search(queries, 5) for index in pair))
    for probes in (1, 7, 20, 400):
        for index in pair:
            index.nprobe = probes
        same(*(index.search(queries, 9) for index in pair))
    for index in pair:
        index.nprobe = 4
    radius = 2.0 if metric else 15.0
    found = [index.range_search(queries, radius) for index in pair]
    assert sets(found[0]) == sets(found[1])
    a, b = (index.search_and_reconstruct(queries, 4) for index in pair)
    np.testing.assert_array_equal(a[2], b[2])
    lists = pair[1].quantizer.search(queries, 4)
    lists[1][:, 2] = -1
    same(*(index.search_preassigned(queries, 5, lists[1], lists[0]) for index in pair))
    found = [index.range_search_preassigned(queries, radius, lists[1], lists[0]) for index in pair]
    assert sets(found[0]) == sets(found[1])
    for index, module in zip(pair, (ours, theirs), strict=True):
        module.ParameterSpace().set_index_parameters(index, "nprobe=6,max_codes=400")
        assert (index.nprobe, index.max_codes) == (6, 400)
    # How many codes are seen: lists in the order of FAISS, which a removal has changed.
    pair[0] = across(ours, pair[1])
    for most in (100, 400, 401):
        for index, module in zip(pair, (ours, theirs), strict=True):
            module.ParameterSpace().set_index_parameters(index, f"nprobe=6,max_codes={most}")
        same(*(index.search(queries, 5) for index in pair))
        found = [index.range_search(queries, radius) for index in pair]  # of all codes in both
        assert sets(found[0]) == sets(found[1])
        found = [
            index.search(
                queries,
                5,
                params=module.SearchParametersIVF(
                    nprobe=6, max_codes=most // 4, sel=selectors(module)["batch"]
                ),
            )
            for index, module in zip(pair, (ours, theirs), strict=True)
        ]
        same(*found)
    assert pair[0].sa_code_size() == pair[1].sa_code_size() == 49
    np.testing.assert_array_equal(*(index.sa_encode(rows[:40]) for index in pair))
    np.testing.assert_array_equal(pair[0].sa_decode(pair[0].sa_encode(rows[:40])), rows[:40])
    a, b = (index.search_and_return_codes(queries, 3, include_listnos=True) for index in pair)
    np.testing.assert_array_equal(a[2], b[2])
    other = across(ours, pair[0])
    other.reset()
    assert other.ntotal == 0 and other.nprobe == 6
    other.add(rows[:10])
    pair[0].merge_from(other, 500000)
    assert (pair[0].ntotal, other.ntotal) == (2019, 0)
    pair[0].max_codes = 0
    assert other.search(rows[3:4], 1)[1][0, 0] == -1
    pair[0].set_direct_map_type(ours.DirectMap.Hashtable)
    np.testing.assert_array_equal(pair[0].reconstruct(500003), rows[3])


@needs_faiss
def test_subsets_of_lists(rows):
    pair = pair_of_lists(rows)
    for index in pair:
        index.add(rows)
    for which, a, b in ((0, 100, 900), (0, 9, 3), (1, 7, 3), (2, 500, 1500), (2, 0, 1),
                        (2, 7, 2999), (2, 0, 3000), (3, 3, 1), (3, 7, 6), (4, 3, 9),
                        (4, 0, 100)):  # fmt: skip
        found, copied = [], []
        for index in pair:
            other = index_module(index).clone_index(index)
            other.reset()
            other.add(rows[:1])
            index.copy_subset_to(other, which, a, b)
            other.nprobe = 20
            found.append(other.search(rows[:50], 5))
            copied.append(lists_of(other, index_module(index)))
            assert index.ntotal == 3000
        assert copied[0] == copied[1], (which, a, b)
        same(*found)
    names = [name for name in dir(theirs.InvertedLists) if name.startswith("SUBSET")]
    assert len(names) == 5
    for name in names:
        assert getattr(ours.InvertedLists, name) == getattr(theirs.InvertedLists, name)
    for index in pair:
        with refused():
            index.copy_subset_to(index, 5, 0, 1)


@needs_faiss
def test_rows_of_given_lists(rows):
    pair = pair_of_lists(rows)
    lists = np.random.default_rng(1).integers(-1, 20, 300)
    for index, module in zip(pair, (ours, theirs), strict=True):
        ids = np.arange(1000, 1300)
        index.add_core(
            300, *(module.swig_ptr(each) for each in (np.ascontiguousarray(rows[:300]), ids, lists))
        )
    assert lists_of(pair[0], ours) == lists_of(pair[1], theirs)
    for index, module in zip(pair, (ours, theirs), strict=True):
        assert index.ntotal == 300 and index.invlists.compute_ntotal() == (lists >= 0).sum() < 300
        index.add(rows[300:400])  # under ids from 300 on
        index.nprobe = 20
        index.make_direct_map(False)
        index.search(rows[:1], 1)
        index.add(rows[400:500])
        assert index.search(rows[300:500], 1)[1].ravel().tolist() == list(range(300, 500))
        back = across(theirs if module is ours else ours, index)
        assert back.ntotal == 500
        back.nprobe = 20
        same(back.search(rows[:50], 5), index.search(rows[:50], 5))
        assert index.remove_ids(np.arange(300, 320)) == 20 and index.ntotal == 480
        index.merge_from(module.clone_index(index), 5000)
        assert index.ntotal == 960
        index.reset()
        assert index.ntotal == 0


@needs_faiss
@pytest.mark.parametrize("map_", [0, 1, 2])
def test_rows_of_no_list(rows, map_):
    """FAISS counts rows that are in no list, as those with NaN; so do an IDMap and its file."""
    index = theirs.index_factory(12, "IVF20,Flat")
    index.train(rows)
    index.set_direct_map_type(map_)
    bad = rows[:100].copy()
    bad[::3, 5] = np.nan
    index.add(bad)
    read = across(ours, index)
    assert read.ntotal == 100 and read.direct_map.type == map_
    read.nprobe = 20
    assert read.search(rows[1:2], 1)[1].tolist() == [[1]]
    if map_:
        np.testing.assert_array_equal(read.reconstruct(98), rows[98])
    if map_ == 1:
        back = across(theirs, read)
        np.testing.assert_array_equal(back.reconstruct(98), rows[98])
        return
    mapped = theirs.IndexIDMap2(theirs.index_factory(12, "IVF20,Flat"))
    mapped.train(rows)
    mapped.add_with_ids(bad, np.arange(100) * 10)
    mapped = across(ours, mapped)
    ours.extract_index_ivf(mapped).nprobe = 20
    assert mapped.remove_ids(np.arange(0, 200)) == 20 and mapped.ntotal == 80
    mapped.add_with_ids(rows[1:2], np.array([7]))
    assert mapped.search(rows[[1, 20, 98]], 1)[1].ravel().tolist() == [7, 200, 980]


def test_direct_maps(rows, faiss):
    index = faiss.index_factory(12, "IVF20,Flat")
    with refused():
        index.add(rows)
    with refused():
        index.train(rows[:10])
    index.train(rows)
    index.add(rows)
    with refused():
        index.reconstruct(4)
    index.make_direct_map()
    np.testing.assert_array_equal(index.reconstruct(4), rows[4])
    np.testing.assert_array_equal(index.reconstruct_n(7, 9), rows[7:16])
    with refused():
        index.remove_ids(np.arange(10))
    with refused():
        index.add_with_ids(rows[:2], np.array([7, 9]))
    index.update_vectors(np.array([3, 5]), rows[[100, 200]] + np.float32(0.01))
    index.nprobe = 20
    assert index.search(rows[100:101] + np.float32(0.01), 1)[1][0, 0] == 3
    index.set_direct_map_type(faiss.DirectMap.Hashtable)
    assert index.remove_ids(faiss.IDSelectorArray(np.arange(5))) == 5
    assert index.remove_ids(np.arange(5, 10)) == 5
    with refused():
        index.remove_ids(faiss.IDSelectorRange(10, 15))
    with refused():
        index.reconstruct(5)
    np.testing.assert_array_equal(index.reconstruct(2999), rows[2999])
    with refused():
        index.search(rows, 1, params=faiss.SearchParameters())


def test_quantizers_of_lists(rows, faiss):
    """The quantizer may be any index, and may be asked with parameters."""
    quantizer = faiss.index_factory(12, "IVF10,Flat")
    index = faiss.IndexIVFFlat(quantizer, 12, 60)
    index.quantizer_trains_alone = 2
    quantizer.make_direct_map()
    index.train(rows)
    index.add(rows)
    quantizer.nprobe = 10
    index.nprobe = 60
    flat = faiss.IndexFlatL2(12)
    flat.add(rows)
    same(index.search(rows[:50], 5), flat.search(rows[:50], 5))
    few = faiss.SearchParametersIVF(nprobe=5, quantizer_params=faiss.SearchParametersIVF(nprobe=2))
    near = index.search(rows[:50], 5, params=few)[1]
    assert (near[:, 0] == np.arange(50)).mean() > 0.9


@needs_faiss
def test_searches_with_parameters(rows):
    pair = pair_of_lists(rows)
    found, ranges = [], []
    for index in pair:
        module = index_module(index)
        index.add(rows)
        params = module.SearchParametersIVF(nprobe=7)
        found.append(module.search_with_parameters(index, rows[:50], 5, params))
        more = module.search_with_parameters(index, rows[:50], 5, params, output_stats=True)
        same(more[:2], found[-1])
        assert more[2]["ndis"] > 0
        assert set(more[2]) == {
            "ndis",
            "pre_transform_ms",
            "coarse_quantizer_ms",
            "invlist_scan_ms",
        }
        ranges.append(module.range_search_with_parameters(index, rows[:50], 2.0, params))
        assert len(ranges[-1]) == 3 and len(ranges[-1][2]) > 500
    same(*found)
    near_sets(*ranges, 2.0, 1)


@needs_faiss
@pytest.mark.parametrize("k", [3, 200])
@pytest.mark.parametrize("selected", [False, True])
def test_searches_that_fill_up(rows, k, selected):
    """Whole lists until there are max_codes and k rows that are allowed."""
    index = filled(ours, "IVF40,Flat", 1, rows)
    found, counts = [], []
    for module, each in ((ours, index), (theirs, across(theirs, index))):
        params = module.SearchParametersIVF(nprobe=30, max_codes=90, ensure_topk_full=True)
        if selected:
            params.sel = module.IDSelectorBatch(np.arange(0, 3000, 4))
        module.cvar.indexIVF_stats.reset()
        found.append(each.search(rows[:60], k, params=params))
        counts.append(module.cvar.indexIVF_stats.ndis)
    same(*found)
    assert counts[0] == counts[1]


def test_searches_that_go_on(rows, faiss):
    """Results so far stay in the running where nothing is to be begun anew."""
    index = filled(faiss, "IVF20,Flat", 1, rows)
    index.nprobe = 4
    lists = index.quantizer.search(rows[:30], 4)[1]
    best = faiss.ResultHeap(30, 5)
    index.parallel_mode |= index.PARALLEL_MODE_NO_HEAP_INIT
    for half in (lists < 10, lists >= 10):
        index.search_preassigned(
            rows[:30],
            5,
            np.where(half, lists, -1),
            np.zeros_like(lists, np.float32),
            D=best.D,
            I=best.I,
        )
    best.finalize()
    index.parallel_mode = 0
    same(index.search(rows[:30], 5), (best.D, best.I))


def test_variables(rows, faiss):
    """Those that scripts read: what lists scanned since reset()."""
    index = faiss.index_factory(12, "IVF20,Flat")
    index.train(rows)
    index.add(rows)
    index.nprobe = 3
    faiss.cvar.indexIVF_stats.reset()
    index.search(rows[:50], 5)
    stats = faiss.cvar.indexIVF_stats
    assert (stats.nq, stats.nlist) == (50, 150) and 0 < stats.ndis < 150 * 3000
    assert faiss.cvar.distance_compute_blas_threshold == 128000


@needs_faiss
def test_whether_there_is_a_precomputed_table(rows):
    for metric, by_residual, asked in [(1, True, 0), (1, True, -1), (1, False, 0), (0, True, 0),
                                       (1, True, 1)]:  # fmt: skip
        pair = []
        for module in (ours, theirs):
            index = module.IndexIVFPQ(module.IndexFlat(12, metric), 12, 20, 4, 4, metric)
            index.by_residual, index.use_precomputed_table = by_residual, asked
            index.train(rows)
            again = module.deserialize_index(module.serialize_index(index))
            pair.append((index.use_precomputed_table, again.use_precomputed_table))
        assert pair[0] == pair[1], (metric, by_residual, asked)
