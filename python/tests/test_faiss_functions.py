"""knear.faiss: the functions and small classes beside indexes, with those that SWIG makes: searches
of arrays, other metrics, random numbers, pointers, bits, maps."""

import numpy as np
import pytest
from faiss_pair import filled, needs_faiss, ours, same, theirs


@needs_faiss
def test_functions(rows):
    q = rows[:20]
    for metric in (0, 1):
        same(*(module.knn(q, rows, 9, metric) for module in (ours, theirs)))
        a, b = (module.pairwise_distances(q, rows[:333], metric) for module in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    for name in ("kmin", "kmax"):
        for k in (3, 15):
            same(*(getattr(module, name)(q, k) for module in (ours, theirs)))
    a, b = rows.copy(), rows.copy()
    a[7] = b[7] = 0
    assert ours.normalize_L2(a) is None
    theirs.normalize_L2(b)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(TypeError):
        ours.normalize_L2(rows.astype(np.float64))
    i, j = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 9, 1], [7, 8, 9]])
    assert ours.eval_intersection(i, j) == theirs.eval_intersection(i, j) == 2
    for shape in (7, 5000, (30, 50)):
        for name in ("rand", "randn", "randint"):
            np.testing.assert_array_equal(
                getattr(ours, name)(shape, 5), getattr(theirs, name)(shape, 5)
            )
    np.testing.assert_array_equal(
        ours.randint(2000, seed=3, vmax=17), theirs.randint(2000, seed=3, vmax=17)
    )
    np.testing.assert_allclose(
        ours.rand_smooth_vectors(100, 8), theirs.rand_smooth_vectors(100, 8), atol=1e-5
    )
    many = [theirs.knn(q, rows[part::3], 4) for part in range(3)]
    stacked = np.stack([d for d, _ in many]), np.stack([i for _, i in many])
    a, b = (module.merge_knn_results(*stacked) for module in (ours, theirs))
    same(a, b)
    heap = ours.ResultHeap(20, 4)
    for found in many:
        heap.add_result(*found)
    heap.finalize()
    np.testing.assert_array_equal(heap.D, a[0])
    assert ours.get_num_gpus() == 0
    ours.omp_set_num_threads(2)
    assert ours.omp_get_max_threads() == 2


@needs_faiss
@pytest.mark.parametrize(
    "metric",
    [
        ours.METRIC_L1,
        ours.METRIC_Linf,
        ours.METRIC_Lp,
        ours.METRIC_Canberra,
        ours.METRIC_BrayCurtis,
        ours.METRIC_JensenShannon,
        ours.METRIC_Jaccard,
        ours.METRIC_NaNEuclidean,
        ours.METRIC_GOWER,
    ],
)
def test_other_metrics(rows, metric):
    x, y = (np.abs(np.sin(part)) + np.float32(0.01) for part in (rows[:20], rows[20:300]))
    x, y = x.clip(0, 1), y.clip(0, 1)
    if metric == ours.METRIC_GOWER:  # classes
        x[:, 3], y[:, 3] = -np.arange(20) % 3 - 1, -np.arange(280) % 3 - 1
    if metric in (ours.METRIC_NaNEuclidean, ours.METRIC_GOWER):
        x[3, 5] = y[7, :4] = np.nan
    assert ours.is_similarity_metric(metric) == theirs.is_similarity_metric(metric)
    tables = [module.pairwise_distances(x, y, metric, 1.5) for module in (ours, theirs)]
    np.testing.assert_allclose(*tables, rtol=1e-4, atol=1e-5)
    a, b = (module.knn(x, y, 5, metric, 1.5) for module in (ours, theirs))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-5)
    near = np.take_along_axis(tables[0], a[1], 1)
    np.testing.assert_array_equal(near, a[0])


@pytest.mark.parametrize(
    "change, remark",
    [
        (lambda x: x.__setitem__(slice(5, 10), 0), "has 5 copies"),
        (lambda x: x.__setitem__(slice(5, 10), 0), "(5 null vectors)"),
        (lambda x: x.__setitem__(slice(None, None, 2), x[1::2]), "20 vectors are distinct"),
        (lambda x: x.__setitem__((slice(None), slice(5, 10)), 0), "5 dimensions are constant"),
        (
            lambda x: x.__setitem__((slice(None), slice(5, 10)), x[:, 5:10] + 12345),
            "5 dimensions are too large wrt. their variance",
        ),
        (lambda x: x.__itruediv__(np.linalg.norm(x, axis=1)[:, None]), "vectors are normalized"),
        (lambda x: x.__setitem__((3, 2), np.nan), "1 vectors contain NaN or Inf"),
        (lambda x: None, "all vectors are distinct"),
    ],
)
def test_matrix_stats(faiss, change, remark):
    x = np.random.default_rng(1).random((40, 20), np.float32)
    change(x)
    assert remark in faiss.MatrixStats(x).comments


def test_bits(faiss):
    code = np.ones(9, np.uint8)
    writer = faiss.BitstringWriter(faiss.swig_ptr(code), 9)
    numbers = [(5, 3), (12345, 20), (1, 1), (2**40 + 7, 45)]
    for number, bits in numbers:
        writer.write(number, bits)
    reader = faiss.BitstringReader(faiss.swig_ptr(code), 9)
    assert [(reader.read(bits), bits) for _, bits in numbers] == numbers


def test_functions_of_pointers(rows, faiss):
    pointer = faiss.swig_ptr
    x, y, out = rows[0].copy(), rows[1:8].copy(), np.zeros(7, np.float32)
    faiss.fvec_L2sqr_ny(pointer(out), pointer(x), pointer(y), 12, 7)
    np.testing.assert_allclose(out, np.square(x - y).sum(1), rtol=1e-5)
    faiss.fvec_inner_products_ny(pointer(out), pointer(x), pointer(y), 12, 7)
    np.testing.assert_allclose(out, y @ x, rtol=1e-4, atol=1e-5)
    faiss.fvec_norms_L2(pointer(out), pointer(y), 12, 7)
    np.testing.assert_allclose(out, np.linalg.norm(y, axis=1), rtol=1e-5)
    sums = np.zeros(12, np.float32)
    least = faiss.fvec_madd_and_argmin(12, pointer(x), 0.5, pointer(y[0]), pointer(sums))
    np.testing.assert_allclose(sums, x + 0.5 * y[0], rtol=1e-5)
    assert least == sums.argmin()
    a, b = np.array([0, 2, 4]), np.array([1, 1, 6])
    pairs = [3, pointer(y), pointer(a), pointer(y), pointer(b), pointer(out)]
    faiss.pairwise_indexed_L2sqr(12, *pairs)
    np.testing.assert_allclose(out[:3], np.square(y[a] - y[b]).sum(1), rtol=1e-5)


def test_what_swig_has(rows, faiss):
    index = filled(faiss, "IDMap,IVF20,Flat", 1, rows)
    assert index.this.own() and faiss.IDSelectorBatch([1, 2]).this.own()
    assert faiss.swig_version() < 0x050000 and faiss.check_openmp()
    assert "Adds vectors to the index" in index.add.__doc__
    assert faiss.SIMDConfig.is_simd_level_available(faiss.SIMDConfig.get_level())
    faiss.SIMDConfig.set_level(faiss.SIMDConfig.get_dispatched_level())
    a, b = faiss.Int64Vector(), faiss.Int64Vector()
    faiss.copy_array_to_vector(np.arange(5), a)
    a.swap(b)
    assert (a.size(), b.size()) == (0, 5)
    numbers = faiss.MapLong2Long()
    numbers.add(np.array([3, 4], np.int32), np.array([30, 40], np.int32))
    assert numbers.search(3) == 30 and numbers.search_multiple(np.array([4, 5])).tolist() == [
        40,
        -1,
    ]
    seen = faiss.CodeSet(2)
    assert seen.insert(np.array([[1, 2], [1, 2], [3, 4]], np.uint8)).tolist() == [True, False, True]
    assert faiss.ScalarQuantizer.QT_5bit_tq == 18 and faiss.ScalarQuantizer.QT_0bit == 9
    quantizer = faiss.ScalarQuantizer(12, faiss.ScalarQuantizer.QT_4bit)
    quantizer.train(rows)
    codes = faiss.clone_Quantizer(quantizer).compute_codes(rows[:5])
    np.testing.assert_array_equal(codes, quantizer.compute_codes(rows[:5]))
    bounds = np.zeros(2, np.uint64)
    ids = np.array([1, 3, 5, 7])
    pointers = [faiss.swig_ptr(each) for each in (ids, bounds[:1], bounds[1:])]
    faiss.IDSelectorRange(2, 6, True).find_sorted_ids_bounds(4, *pointers)
    assert bounds.tolist() == [1, 3]
    lists = faiss.extract_index_ivf(index)
    assert lists.check_ids_sorted()
    numbers = np.empty(9, np.int64)
    faiss.search_centroid(lists, faiss.swig_ptr(rows), 9, faiss.swig_ptr(numbers))
    np.testing.assert_array_equal(numbers, lists.quantizer.assign(rows[:9], 1).ravel())
