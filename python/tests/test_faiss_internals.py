"""knear.faiss: what scripts take of FAISS beside indexes: generators of random numbers, searches of
pointers, check sums, callbacks that end calls, bases of readers."""

import time

import numpy as np
import pytest
from faiss_pair import across, needs_faiss, ours, refused, same, theirs


@needs_faiss
def test_generators():
    for name in ("RandomGenerator", "SplitMix64RandomGenerator"):
        for seed in (1234, 7, 2**31 + 5):
            drawn = []
            for module in (ours, theirs):
                luck = getattr(module, name)(seed)
                drawn.append([
                    [luck.rand_int(), luck.rand_int(10), luck.rand_int64(), luck.rand_float(),
                     luck.rand_double()] for _ in range(50)
                ])  # fmt: skip
            np.testing.assert_array_equal(*drawn)
        assert getattr(ours, name)().rand_int() == getattr(theirs, name)().rand_int()


@needs_faiss
@pytest.mark.parametrize("n", [1, 9, 3000])
def test_random_arrays(n):
    calls = {"rand_perm": np.int32, "rand_perm_splitmix64": np.int32, "byte_rand": np.uint8,
             "int64_rand": np.int64}  # fmt: skip
    for name, kind in calls.items():
        a, b = np.zeros(n, kind), np.zeros(n, kind)
        getattr(ours, name)(ours.swig_ptr(a), n, 3)
        getattr(theirs, name)(theirs.swig_ptr(b), n, 3)
        np.testing.assert_array_equal(a, b, err_msg=name)
    a, b = np.zeros(n, np.int64), np.zeros(n, np.int64)
    ours.int64_rand_max(ours.swig_ptr(a), n, 17, 3)
    theirs.int64_rand_max(theirs.swig_ptr(b), n, 17, 3)
    np.testing.assert_array_equal(a, b)


@needs_faiss
def test_check_sums(rows):
    for array in (rows, rows[0], np.arange(250, 257).astype(np.uint8), np.arange(-7, 30),
                  rows[:5].view(np.uint8)[:, :7].copy()):  # fmt: skip
        np.testing.assert_array_equal(ours.checksum(array), theirs.checksum(array))


@needs_faiss
def test_methods_of_indexes_that_take_pointers(rows):
    """The signatures of C++, with arrays of swig_ptr()."""
    x = rows[:9].copy()
    pair = (ours, theirs)
    outs = []
    for module in pair:
        pointer = module.swig_ptr
        flat = module.IndexFlatL2(12)
        flat.add(rows)
        many, one = np.empty((9, 12), np.float32), np.empty(12, np.float32)
        keys = np.arange(50, 59)
        flat.compute_residual_n(9, pointer(x), pointer(many), pointer(keys))
        flat.compute_residual(pointer(x), pointer(one), 7)
        outs.append([many, one])
    for a, b in zip(*outs, strict=True):
        np.testing.assert_array_equal(a, b)
    theirs_chain = theirs.index_factory(12, "PCA5,Flat")
    theirs_chain.train(rows)
    outs = []
    for module in pair:
        index, pointer = across(module, theirs_chain), module.swig_ptr
        there = module.rev_swig_ptr(index.apply_chain(9, pointer(x)), 45).reshape(9, 5).copy()
        back = np.empty((9, 12), np.float32)
        index.reverse_chain(9, pointer(there), pointer(back))
        outs.append([there, back])
    for a, b in zip(*outs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(across(ours, theirs_chain).apply_chain(x), outs[0][0])


@needs_faiss
@pytest.mark.parametrize("string", ["IVF20,Flat", "IVF20,PQ4", "IVF300,SQ8"])
def test_codes_of_vectors_in_lists_by_pointers(rows, string):
    trained = theirs.index_factory(12, string)
    trained.train(rows)
    x, lists = rows[:30].copy(), trained.quantizer.assign(rows[:30], 1).ravel()
    lists[3] = -1
    outs = []
    for module in (ours, theirs):
        index, pointer = across(module, trained), module.swig_ptr
        codes = np.full((30, index.code_size), 9, np.uint8)
        listed = np.full((30, index.sa_code_size()), 9, np.uint8)
        index.encode_vectors(30, pointer(x), pointer(lists), pointer(codes))
        index.encode_vectors(30, pointer(x), pointer(lists), pointer(listed), True)
        outs.append([codes, listed])
    some = np.arange(30) != 3  # IndexIVFFlat of FAISS copies what is in no list
    for a, b in zip(*outs, strict=True):
        np.testing.assert_array_equal(a[some], b[some])
    index = ours.index_factory(12, string)
    index.train_q1(3000, ours.swig_ptr(rows), False, ours.METRIC_L2)
    assert index.quantizer.ntotal == index.nlist


@pytest.mark.parametrize("metric", ["L2sqr", "inner_product"])
def test_searches_of_pointers(rows, faiss, metric):
    x, y, pointer = rows[:7].copy(), rows[:500].copy(), faiss.swig_ptr
    want = faiss.knn(x, y, 4, faiss.METRIC_L2 if metric == "L2sqr" else 0)
    distances, ids = np.zeros((7, 4), np.float32), np.zeros((7, 4), np.int64)
    search = getattr(faiss, f"knn_{metric}")
    search(pointer(x), pointer(y), 12, 7, 500, 4, pointer(distances), pointer(ids))
    same((distances, ids), want)
    heap = faiss.float_maxheap_array_t() if metric == "L2sqr" else faiss.float_minheap_array_t()
    distances[:], ids[:] = 0, 0
    heap.nh, heap.k, heap.ids, heap.val = 7, 4, pointer(ids), pointer(distances)
    search(pointer(x), pointer(y), 12, 7, 500, heap)
    same((distances, ids), want)
    radius = float(want[0][:, 3].mean())
    result = faiss.RangeSearchResult(7)
    within = getattr(faiss, f"range_search_{metric}")
    within(pointer(x), pointer(y), 12, 7, 500, radius, result)
    index = faiss.IndexFlat(12, faiss.METRIC_L2 if metric == "L2sqr" else 0)
    index.add(y)
    begin, _, found = index.range_search(x, radius)
    lims = faiss.rev_swig_ptr(result.lims, 8)
    np.testing.assert_array_equal(lims, begin)
    assert set(faiss.rev_swig_ptr(result.labels, int(lims[-1])).tolist()) == set(found.tolist())


def test_heaps(faiss):
    ids, values = np.zeros((2, 3), np.int64), np.zeros((2, 3), np.float32)
    heap = faiss.float_maxheap_array_t()
    heap.nh, heap.k = 2, 3
    heap.ids, heap.val = faiss.swig_ptr(ids), faiss.swig_ptr(values)
    heap.heapify()
    some = np.array([[5, 1, 4, 2], [9, 8, 7, 6]], np.float32)
    heap.addn(4, faiss.swig_ptr(some), 100)
    heap.reorder()
    assert values.tolist() == [[1, 2, 4], [6, 7, 8]]
    assert ids.tolist() == [[101, 103, 102], [103, 102, 101]]


def test_functions_of_vectors(rows, faiss):
    x, y, pointer = rows[0].copy(), rows[1].copy(), faiss.swig_ptr
    assert faiss.fvec_L1(pointer(x), pointer(y), 12) == pytest.approx(np.abs(x - y).sum())
    assert faiss.fvec_Linf(pointer(x), pointer(y), 12) == pytest.approx(np.abs(x - y).max())
    assert faiss.fvec_norm_L2sqr(pointer(x), 12) == pytest.approx((x**2).sum(), rel=1e-5)
    out = np.zeros(12, np.float32)
    faiss.fvec_add(12, pointer(x), pointer(y), pointer(out))
    np.testing.assert_array_equal(out, x + y)
    faiss.fvec_add(12, pointer(x), 2.0, pointer(out))
    np.testing.assert_array_equal(out, x + 2)
    faiss.fvec_sub(12, pointer(x), pointer(y), pointer(out))
    np.testing.assert_array_equal(out, x - y)
    order = np.zeros(12, np.uint64)
    faiss.fvec_argsort(12, pointer(x), pointer(order))
    np.testing.assert_array_equal(order, np.argsort(x))
    ours.fvec_argsort_parallel(12, x, order)  # FAISS errs with 7 threads
    np.testing.assert_array_equal(order, np.argsort(x))
    table, q, base = np.zeros((2, 3), np.float32), rows[:2].copy(), rows[:3].copy()
    faiss.pairwise_L2sqr(12, 2, pointer(q), 3, pointer(base), pointer(table))
    np.testing.assert_allclose(table, faiss.pairwise_distances(q, base), atol=1e-4)
    a, b = np.array([1, 2, 3]), np.array([3, 9, 1, 1])
    assert faiss.ranklist_intersection_size(3, pointer(a), 4, pointer(b)) == 2
    assert faiss.fourcc_inv(faiss.fourcc("IxF2")) == "IxF2"
    faiss.memcpy(pointer(out), pointer(y), 24)
    np.testing.assert_array_equal(out[:6], y[:6])


def test_calls_end_in_time(faiss):
    # Large enough to take much longer than the time between two questions whether to go on.
    big = np.random.default_rng(0).random((100000, 64), np.float32)
    index = faiss.IndexFlatL2(64)
    index.add(big)
    parameters = faiss.ClusteringParameters()
    parameters.niter = 1_000_000
    start = time.perf_counter()
    with faiss.TimeoutGuard(0.01), refused(match="computation interrupted"):
        faiss.Clustering(64, 2000, parameters).train(big, faiss.IndexFlatL2(64))
    with faiss.TimeoutGuard(0.01), refused(match="computation interrupted"):
        index.search(big, 10)
    assert time.perf_counter() - start < 20
    assert not faiss.InterruptCallback.is_interrupted()
    assert index.search(big[:3], 1)[1].ravel().tolist() == [0, 1, 2]
    faiss.TimeoutCallback.reset(0.001)
    time.sleep(0.01)
    assert faiss.InterruptCallback.is_interrupted()
    faiss.PythonInterruptCallback.reset()
    assert not faiss.InterruptCallback.is_interrupted()


def test_searches_that_are_written_in_python_end_in_time(rows):
    class After(ours.InterruptCallback):
        def __init__(self, most):
            self.left = most

        def want_interrupt(self):
            self.left -= 1
            return self.left < 0

    ivf = ours.index_factory(12, "IVF20,Flat")
    ivf.train(rows)
    ivf.add(rows)
    ivf.nprobe = 4
    lists = ivf.quantizer.assign(rows, 4)
    farthest = ours.IndexFlat(12, ours.METRIC_Linf)
    farthest.add(rows)
    refined = ours.IndexRefineFlat(ours.index_factory(12, "SQ8"))
    refined.train(rows)
    refined.add(rows)
    try:
        for search in (
            lambda: ivf.search_preassigned(rows, 5, lists[:, [0, 0, 1, 2]]),
            lambda: ivf.range_search_preassigned(rows, 1.0, lists),
            lambda: farthest.search(rows, 5),
            lambda: farthest.range_search(rows, 1.0),
            lambda: refined.search(rows, 5),
        ):
            ours.InterruptCallback.set_instance(After(1))
            with refused(match="computation interrupted"):
                search()
            ours.InterruptCallback.clear_instance()
            search()
    finally:
        ours.InterruptCallback.clear_instance()


def test_bases_and_copies(rows, faiss):
    index = faiss.index_factory(12, "PCA8,IVF20,Flat")
    index.train(rows)
    index.add(rows)
    data = faiss.serialize_index(index)
    reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(data), data.size)
    assert isinstance(reader, faiss.IOReader) and faiss.read_index(reader).ntotal == 3000
    assert isinstance(faiss.VectorIOWriter(), faiss.IOWriter)
    lists = faiss.extract_index_ivf(index)
    assert isinstance(lists, faiss.IndexIVFInterface) and isinstance(lists, faiss.Level1Quantizer)
    assert issubclass(faiss.ProductQuantizer, faiss.Quantizer)
    made = faiss.downcast_index(faiss.Cloner().clone_Index(index))
    made.reset()
    assert (made.ntotal, index.ntotal) == (0, 3000)
    chain = faiss.VectorTransformVector()
    chain.push_back(index.chain.at(0))
    assert chain.size() == 1 and chain.at(0).d_out == 8
    assert faiss.IDSelectorBitmap(np.array([1, 2, 3], np.uint8)).n == 3
    assert isinstance(faiss.supported_instruction_sets(), set)
    assert faiss.get_version() == faiss.__version__


@needs_faiss
def test_lengths_of_lists(rows, capfd):
    told = []
    for module in (ours, theirs):
        index = module.index_factory(12, "IVF20,Flat")
        index.train(rows)
        index.add(rows[:200])
        index.invlists.print_stats()
        told.append((capfd.readouterr().out, round(index.invlists.imbalance_factor(), 5)))
    assert told[0] == told[1]
    with pytest.raises(NotImplementedError, match="search_preassigned"):
        ours.index_factory(12, "IVF20,Flat").get_InvertedListScanner()
