"""knear.faiss: the members of FAISS's classes, each here or refused with knear's way."""

import numpy as np
import pytest
from faiss_pair import across, needs_faiss, ours, same, theirs

MAKERS = {
    "flat": lambda f: f.IndexFlatL2(12),
    "flat ip": lambda f: f.IndexFlatIP(12),
    "lists": lambda f: f.IndexIVFFlat(f.IndexFlatL2(12), 12, 10),
    "lists of pq": lambda f: f.IndexIVFPQ(f.IndexFlatL2(12), 12, 10, 4, 4),
    "lists of sq": lambda f: f.IndexIVFScalarQuantizer(f.IndexFlatL2(12), 12, 10, 0),
    "pq": lambda f: f.IndexPQ(12, 4, 4),
    "sq": lambda f: f.IndexScalarQuantizer(12, 0),
    "transform": lambda f: f.IndexPreTransform(f.PCAMatrix(12, 8), f.IndexFlatL2(8)),
    "ids": lambda f: f.IndexIDMap(f.IndexFlatL2(12)),
    "ids back": lambda f: f.IndexIDMap2(f.IndexFlatL2(12)),
    "refine": lambda f: f.IndexRefine(f.IndexFlatL2(12), f.IndexFlatL2(12)),
    "product quantizer": lambda f: f.ProductQuantizer(12, 4, 4),
    "scalar quantizer": lambda f: f.ScalarQuantizer(12, 0),
    "pca": lambda f: f.PCAMatrix(12, 8),
    "normalization": lambda f: f.NormalizationTransform(12),
    "centering": lambda f: f.CenteringTransform(12),
    "clustering": lambda f: f.Clustering(12, 10),
    "parameters": lambda f: f.ClusteringParameters(),
    "kmeans": lambda f: f.Kmeans(12, 10),
    "space": lambda f: f.ParameterSpace(),
    "search parameters": lambda f: f.SearchParametersIVF(),
    "range": lambda f: f.IDSelectorRange(1, 2),
    "batch": lambda f: f.IDSelectorBatch([1]),
    "array": lambda f: f.IDSelectorArray([1]),
    "bitmap": lambda f: f.IDSelectorBitmap(np.zeros(3, np.uint8)),
    "invlists": lambda f: f.IndexIVFFlat(f.IndexFlatL2(12), 12, 10).invlists,
    "direct map": lambda f: f.IndexIVFFlat(f.IndexFlatL2(12), 12, 10).direct_map,
    "stats": lambda f: f.cvar.indexIVF_stats,
    "points": lambda f: f.OperatingPoints(),
    "vector": lambda f: f.Float32Vector(),
    "ranges": lambda f: f.RangeSearchResult(3),
    "writer": lambda f: f.VectorIOWriter(),
}


@needs_faiss
@pytest.mark.parametrize("name", MAKERS)
def test_every_member_of_faiss_is_known(name):
    mine, other = MAKERS[name](ours), MAKERS[name](theirs)
    for member in dir(other):
        if member.startswith("_") or member == "referenced_objects":  # what Python keeps alive
            continue
        try:
            value = getattr(mine, member)
        except NotImplementedError as error:
            assert f".{member}: " in str(error) and not hasattr(mine, member)
            assert not callable(getattr(other, member))
            with pytest.raises(NotImplementedError):
                setattr(mine, member, 1)
            continue
        assert callable(value) == callable(getattr(other, member)) or name == "batch", member
    for member in dir(mine):
        if member.endswith(("_c", "_ex")):
            assert hasattr(other, member), member
            with pytest.raises(NotImplementedError, match=rf"^knear.faiss.\w+.{member}: \w"):
                getattr(mine, member)(1)
    assert not hasattr(mine, "no_such_member") and not hasattr(mine, "no_such_member_c")


@needs_faiss
@pytest.mark.parametrize("metric", [1, 0])
def test_distances_of_some_vectors(rows, metric):
    labels = np.random.default_rng(1).integers(-1, 3000, (9, 4))
    outs = []
    for module in (ours, theirs):
        index = module.IndexFlat(12, metric)
        index.add(rows)
        out, pointer = np.empty((9, 4), np.float32), module.swig_ptr
        index.compute_distance_subset(9, pointer(rows), 4, pointer(out), pointer(labels))
        outs.append(out)
    np.testing.assert_allclose(*outs, rtol=1e-4, atol=1e-5)


@needs_faiss
def test_lengths_of_vectors(rows):
    pair = ours.IndexFlatL2(12), theirs.IndexFlatL2(12)
    for index, module in zip(pair, (ours, theirs), strict=True):
        index.add(rows)
        index.clear_l2norms()
        index.sync_l2norms()
        assert index.cached_l2norms.size() == 3000
        lengths = module.vector_to_array(index.cached_l2norms)
        np.testing.assert_allclose(lengths, (rows**2).sum(1), rtol=1e-5)


def test_places_of_ids(rows):
    index = ours.IndexIDMap2(ours.IndexFlatL2(12))
    index.add_with_ids(rows[:4], np.array([70, 5, 9, 5]))
    assert index.rev_map == {70: 0, 5: 3, 9: 2} and index.rev_map.size() == 3
    assert index.rev_map.at(9) == 2 and index.rev_map.count(8) == 0
    index.remove_ids(np.array([70]))
    assert index.rev_map[9] == 1


@needs_faiss
@pytest.mark.parametrize("string", ["IVF20,Flat", "IVF300,PQ4x4", "IVF20,SQ8"])
def test_codes_of_lists(rows, string):
    trained = theirs.index_factory(12, string)
    trained.train(rows)
    x, lists = rows[:30].copy(), trained.quantizer.assign(rows[:30], 1).ravel()
    outs = []
    for module in (ours, theirs):
        index, pointer = across(module, trained), module.swig_ptr
        codes, back = np.empty((30, index.code_size), np.uint8), np.empty((30, 12), np.float32)
        index.encode_vectors(30, pointer(x), pointer(lists), pointer(codes))
        index.decode_vectors(30, pointer(codes), pointer(lists), pointer(back))
        number = np.zeros(index.coarse_code_size(), np.uint8)
        index.encode_listno(index.nlist - 2, pointer(number))
        assert index.decode_listno(pointer(number)) == index.nlist - 2
        more = []
        if "PQ" in string:
            keys, one = np.full(30, -1), np.empty(index.code_size, np.uint8)
            many, decoded = np.empty_like(codes), np.empty_like(back)
            index.encode_multiple(30, pointer(keys), pointer(x), pointer(many), True)
            index.decode_multiple(30, pointer(keys), pointer(many), pointer(decoded))
            index.encode(int(lists[5]), pointer(x[5]), pointer(one))
            more = [keys, many, decoded, one]
        outs.append([back, number, np.array(index.train_encoder_num_vectors()), *more])
    for a, b in zip(*outs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@needs_faiss
def test_where_ids_are(rows):
    trained = theirs.index_factory(12, "IVF20,Flat")
    trained.train(rows)
    trained.add(rows)
    trained.make_direct_map()
    index = ours.clone_index(across(ours, trained))
    arrays = [module.vector_to_array(each.direct_map.array)
              for module, each in ((ours, index), (theirs, trained))]  # fmt: skip
    np.testing.assert_array_equal(*arrays)
    ids = np.arange(3)
    for module, each in ((ours, index), (theirs, trained)):
        assert each.direct_map.get(77) == arrays[0][77] and each.direct_map.DMT_count == 3
        with pytest.raises(RuntimeError):
            each.direct_map.get(3000)
        with pytest.raises(RuntimeError):
            each.direct_map.check_can_add(module.swig_ptr(ids))
    assert ours.index_factory(12, "IVF20,Flat").direct_map.array.size() == 0


@needs_faiss
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_searches_of_a_product_quantizer(rows, bits):
    made = theirs.ProductQuantizer(12, 4, bits)
    made.train(rows)
    centroids = [part.copy() for part in np.split(theirs.vector_to_array(made.centroids), 4)]
    row = rows[7].copy()
    codes, outs = made.compute_codes(rows), []
    for module in (ours, theirs):
        pq, pointer = module.ProductQuantizer(12, 4, bits), module.swig_ptr
        for m in range(4):
            pq.set_params(pointer(centroids[m]), m)
        one, by_table = np.empty(pq.code_size, np.uint8), np.empty(pq.code_size, np.uint8)
        table = np.empty((4, pq.ksub), np.float32)
        pq.compute_code(pointer(row), pointer(one))
        pq.compute_distance_table(pointer(row), pointer(table))
        pq.compute_code_from_distance_table(pointer(table), pointer(by_table))
        np.testing.assert_array_equal(one, codes[7])
        np.testing.assert_array_equal(by_table, codes[7])
        found = []
        ways = [("search", "max"), ("search_ip", "min"), ("search_sdc", "max")]
        for way, kind in ways if bits == 8 else ways[:2]:
            heap = getattr(module, f"float_{kind}heap_array_t")()
            distances, ids = np.zeros((5, 6), np.float32), np.zeros((5, 6), np.int64)
            heap.nh, heap.k, heap.val, heap.ids = 5, 6, pointer(distances), pointer(ids)
            if way == "search_sdc":
                pq.compute_sdc_table()
            asked = codes[:5].copy() if way == "search_sdc" else rows[:5].copy()
            getattr(pq, way)(pointer(asked), 5, pointer(codes), 3000, heap)
            found.append((distances, ids))
        outs.append(found)
    for pairs in zip(*outs, strict=True):
        (a, _), (b, _) = pairs
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@needs_faiss
def test_transforms_and_queries_by_pointers(rows):
    pca = theirs.PCAMatrix(12, 5)
    pca.train(rows)
    mine = ours.PCAMatrix(12, 5)
    for name in ("mean", "eigenvalues", "PCAMat"):
        getattr(mine, name).set(theirs.vector_to_array(getattr(pca, name)))
    mine.prepare_Ab()
    out = np.empty((7, 5), np.float32)
    mine.apply_noalloc(7, ours.swig_ptr(rows), ours.swig_ptr(out))
    np.testing.assert_allclose(out, pca.apply(rows[:7]), rtol=1e-4, atol=1e-5)
    index = ours.index_factory(12, "SQ8")
    index.train_with_queries(3000, ours.swig_ptr(rows), 5, ours.swig_ptr(rows))
    assert index.is_trained
    same(*(found for found in _stats_added(rows)))


def _stats_added(rows):
    """Searches of both, after which the one's counts are added to another's."""
    for module in (ours, theirs):
        index = module.IndexFlatL2(12)
        index.add(rows)
        counts, more = module.IndexIVFStats(), module.IndexIVFStats()
        counts.reset()
        more.reset()
        more.nq, more.ndis = 5, 70
        counts.add(more)
        counts.add(more)
        assert (counts.nq, counts.ndis, counts.nlist) == (10, 140, 0)
        yield index.search(rows[:3], 2)


def test_a_class_of_ones_own_keeps_its_methods():
    class IndexPQ(ours.IndexPQ):
        def hamming_distance_table(self):
            return "mine"

    assert IndexPQ(12, 4, 4).hamming_distance_table() == "mine"
