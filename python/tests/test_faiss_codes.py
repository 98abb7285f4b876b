"""knear.faiss: product and scalar quantizers, whose codes FAISS has to understand, and the indexes
that keep these."""

import numpy as np
import pytest
from faiss_pair import METRICS, needs_faiss, ours, refused, same, theirs
from knear.faiss import codes


@needs_faiss
@pytest.mark.parametrize("bits", [8, 4, 6, 5])
def test_product_quantizer(rows, bits):
    quantizers = [module.ProductQuantizer(12, 3, bits) for module in (ours, theirs)]
    losses = []
    for pq in quantizers:
        pq.train(rows)
        assert (pq.M, pq.nbits, pq.ksub, pq.dsub) == (3, bits, 1 << bits, 4)
        losses.append(np.square(pq.decode(pq.compute_codes(rows)) - rows).sum())
    assert losses[0] < losses[1] * 1.05
    ours.copy_array_to_vector(
        theirs.vector_to_array(quantizers[1].centroids), quantizers[0].centroids
    )
    a, b = (pq.compute_codes(rows) for pq in quantizers)
    assert a.shape == b.shape and (a == b).mean() > 0.999
    np.testing.assert_array_equal(quantizers[0].decode(b), quantizers[1].decode(b))


@needs_faiss
def test_tables_of_product_quantizers(rows):
    pair = [module.ProductQuantizer(12, 3, 4) for module in (ours, theirs)]
    pair[1].train(rows)
    centroids = theirs.vector_to_array(pair[1].centroids)
    pair[0].centroids.set(centroids)
    x = np.ascontiguousarray(rows[:7])
    for name in ("compute_distance_tables", "compute_inner_prod_tables"):
        tables = [np.zeros((7, 3, 16), np.float32) for _ in pair]
        for module, pq, table in zip((ours, theirs), pair, tables, strict=True):
            getattr(pq, name)(7, module.swig_ptr(x), module.swig_ptr(table))
        np.testing.assert_allclose(*tables, rtol=1e-4, atol=1e-4)
    for pq in pair:
        pq.compute_sdc_table()
        pq.sync_transposed_centroids()
    for name in ("sdc_table", "transposed_centroids", "centroids_sq_lengths"):
        a, b = ours.vector_to_array(getattr(pair[0], name)), getattr(pair[1], name)
        np.testing.assert_allclose(a, theirs.vector_to_array(b), rtol=1e-4, atol=1e-4)
    pair[0].assign_index = ours.IndexFlatL2(4)
    codes = np.empty((7, pair[0].code_size), np.uint8)
    pair[0].compute_codes_with_assign_index(x, codes, 7)
    np.testing.assert_array_equal(codes, pair[0].compute_codes(x))
    pair[0].clear_transposed_centroids()
    assert pair[0].transposed_centroids.size() == 0


@needs_faiss
@pytest.mark.parametrize(
    "kind",
    ["8bit", "4bit", "6bit", "8bit_uniform", "4bit_uniform", "fp16", "bf16", "8bit_direct",
     "8bit_direct_signed"],
)  # fmt: skip
def test_scalar_quantizer(rows, kind):
    x = np.round(rows * 20) if "direct" in kind else rows
    x = np.abs(x) if kind == "8bit_direct" else x
    pair = [
        module.ScalarQuantizer(12, getattr(module.ScalarQuantizer, f"QT_{kind}"))
        for module in (ours, theirs)
    ]
    codes = []
    for sq in pair:
        sq.train(x[:1000])
        codes.append(sq.compute_codes(x))
    assert pair[0].code_size == pair[1].code_size
    levels = [m.vector_to_array(sq.trained) for m, sq in zip((ours, theirs), pair, strict=True)]
    np.testing.assert_allclose(levels[0], levels[1], rtol=1e-5)
    assert (codes[0] == codes[1]).mean() > 0.999
    np.testing.assert_allclose(pair[0].decode(codes[1]), pair[1].decode(codes[1]), atol=1e-5)


@pytest.mark.parametrize("string", ["PQ4np", "SQ8", "IVF20,PQ4np", "IVF20,SQ8", "PQ4x6np"])
def test_life_of_codes(rows, string, faiss):
    index = faiss.index_factory(12, string)
    with refused():
        index.add(rows)
    with refused():
        index.search(rows, 1)
    index.train(rows)
    index.add(rows)
    if "IVF" in string:
        index.nprobe = 20
        index.make_direct_map()
    vectors = index.reconstruct_n()
    np.testing.assert_allclose(vectors, index.reconstruct_batch(np.arange(3000)), atol=1e-6)
    np.testing.assert_allclose(vectors[17], index.reconstruct(17), atol=1e-6)
    distances, ids = index.search(rows[:50], 5)
    np.testing.assert_allclose(
        distances, np.square(vectors[ids] - rows[:50, None]).sum(2), rtol=1e-3, atol=1e-3
    )
    begin, near_by, found = index.range_search(rows[:50], 1.0)
    for i in range(50):
        exact = np.square(vectors - rows[i]).sum(1)
        got = set(found[int(begin[i]) : int(begin[i + 1])].tolist())
        clear = np.abs(exact - 1) > 1e-4
        assert {j for j in np.flatnonzero((exact < 1) & clear)} <= got
        assert all(exact[j] < 1 + 1e-4 for j in got)
    if "IVF" in string:
        index.make_direct_map(False)
    assert index.remove_ids(np.arange(100)) == 100
    shift = 0 if "IVF" in string else 100
    left = index.reconstruct_n()
    np.testing.assert_allclose(left[200 - shift], vectors[200], atol=1e-6)
    distances, first = index.search(vectors[200:300], 1)
    np.testing.assert_allclose(distances, 0, atol=1e-3)
    assert (first.ravel() == np.arange(200, 300) - shift).mean() > 0.7  # others have the same code
    assert index.ntotal == 2900
    other = faiss.clone_index(index)
    other.reset()
    other.add(rows[:5])
    index.merge_from(other, 10000 if "IVF" in string else 0)
    assert (index.ntotal, other.ntotal) == (2905, 0)
    # Polysemous thresholds, which knear does not apply, and other attributes.
    if "PQ" in string:
        faiss.ParameterSpace().set_index_parameter(index, "ht", 13)
        assert index.polysemous_ht == 13 and index.pq.M == 4


@pytest.mark.parametrize("string", ["Flat", "PQ4np", "SQ8", "PCA8,SQ6"])
@pytest.mark.parametrize("metric", METRICS)
def test_distance_computers(rows, string, metric, faiss):
    index = faiss.index_factory(12, string, metric)
    index.train(rows)
    index.add(rows)
    computer = index.get_distance_computer()
    assert computer.this.own()
    distances, ids = index.search(rows[:3], 4)
    for query, near, which in zip(rows, distances, ids, strict=False):
        computer.set_query(faiss.swig_ptr(query))
        for each, i in zip(near, which, strict=True):
            assert computer(int(i)) == pytest.approx(each, rel=1e-4, abs=1e-4)


def sizes_of_indexes_made(monkeypatch):
    """A list to which the number of rows is added of each index that is made of all rows."""
    made, anew = [], codes.Coded._searched_anew

    def counted(self):
        found = anew(self)
        made.append(len(found.index))
        return found

    monkeypatch.setattr(codes.Coded, "_searched_anew", counted)
    return made


def search_without_index(monkeypatch, pairs):
    """Has this many pairs for each row be compared without an index; 0: none."""
    monkeypatch.setattr(codes, "PAIRS_OF_AN_INDEX", pairs)
    monkeypatch.setattr(codes, "FEW_PAIRS", 32 * pairs)


PLAIN = ["SQ8", "SQ4", "SQ6", "SQfp16", "SQbf16", "IVF7,Flat", "IVF7,SQ8", "IVF7,SQ4"]
PLAIN += ["IVF7,SQ6", "IVF7,SQfp16", "IVF7,SQbf16"]


@pytest.mark.parametrize("far", [0, 50])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("string", PLAIN)
def test_few_queries_need_no_index(string, metric, far, monkeypatch):
    """Until queries have been compared with as many rows as making an index costs, they are
    compared with the codes as they are: the answers are those of the index, to the bit."""
    random = np.random.default_rng(3)
    made = sizes_of_indexes_made(monkeypatch)
    for d, n in [(1, 300), (7, 500), (33, 1500)]:
        base = (random.standard_normal((n, d)) + far).astype(np.float32)
        base[n // 2 : n // 2 + 30] = base[:30]  # ties
        queries = np.concatenate([base[:5], base[:40] + 0.1]).astype(np.float32)
        index = ours.index_factory(d, string, metric)
        index.train(base)
        index.add(base)
        lists = "IVF" in string
        kind = ours.SearchParametersIVF if lists else ours.SearchParameters
        some = ours.IDSelectorRange(n // 4, n // 2)
        for probes, k, selector in [(1, 1, None), (3, 10, None), (7, n + 5, None), (7, 10, some)]:
            words = {"nprobe": probes} if lists else {}
            params = kind(sel=selector, **words)
            found = {}
            for most in (10**9, 0):
                search_without_index(monkeypatch, most)
                index._searched, index._plain_pairs = None, 0
                made.clear()
                found[most] = [index.search(queries[:m], k, params=params) for m in (1, 3, 45)]
                assert made == ([n] if most == 0 or k > 1024 else [])
            for plain, indexed in zip(found[10**9], found[0], strict=True):
                np.testing.assert_array_equal(plain[1], indexed[1])
                np.testing.assert_array_equal(plain[0], indexed[0])


@pytest.mark.parametrize("string", ["SQ8", "SQfp16", "IVF7,SQ8", "IVF7,Flat"])
def test_many_queries_make_an_index_once(rows, string, monkeypatch):
    made = sizes_of_indexes_made(monkeypatch)
    monkeypatch.setattr(codes, "FEW_PAIRS", 0)
    index = ours.index_factory(12, string)
    index.train(rows)
    index.add(rows)
    for _ in range(10 * codes.PAIRS_OF_AN_INDEX):
        index.search(rows[:1], 3)
        if made:
            break
    assert made == [len(rows)] and index._plain_pairs == 0
    index.search(rows[:1000], 3)
    assert made == [len(rows)]
    index.reset()
    index.add(rows)
    index.search(rows[:1], 3)  # begins again
    assert made == [len(rows)]


def test_a_search_without_an_index_is_interrupted_and_refuses_what_an_index_does(rows):
    index = ours.index_factory(12, "SQfp16")
    index.add(rows)
    with ours.TimeoutGuard(1e-9), pytest.raises(RuntimeError, match="interrupted"):
        index.search(rows[:1], 3)
    queries = rows[:2].copy()
    queries[1, 3] = np.inf
    with pytest.raises(RuntimeError, match="finite"):
        index.search(queries, 3)
    broken = index.sa_encode(rows[:1]).view(np.uint16)
    broken[0, 5] = 0x7C00
    index.add_sa_codes(broken.view(np.uint8))
    with pytest.raises(RuntimeError):
        index.search(rows[:1], 3)


def test_no_codes_stand_for_no_vectors():
    quantizer = ours.ScalarQuantizer(6, ours.ScalarQuantizer.QT_6bit)
    quantizer.train(np.random.default_rng(1).random((50, 6), np.float32))
    assert quantizer.decode(np.empty((0, quantizer.code_size), np.uint8)).shape == (0, 6)
    assert quantizer.compute_codes(np.empty((0, 6), np.float32)).shape == (0, 5)


GROWING = ["IVF20,Flat", "IVF20,PQ4x8", "IVF20,PQ4x6", "IVF20,SQ8", "IVF20,SQfp16", "PQ4x8"]
GROWING += ["SQ8", "SQ4", "SQ6", "SQfp16", "SQbf16"]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("string", GROWING)
def test_rows_are_added_to_what_is_searched(rows, string, metric, monkeypatch):
    """Searches between additions cost what was added: no index is made for the new rows, and they
    find what one index of all rows does."""
    index = ours.index_factory(12, string, metric)
    index.train(rows)
    whole = ours.clone_index(index)
    whole.add(rows)
    made = sizes_of_indexes_made(monkeypatch)
    search_without_index(monkeypatch, 0)
    if hasattr(index, "nprobe"):
        index.nprobe = whole.nprobe = 4
        index.set_direct_map_type(ours.DirectMap.Array)
    for begin, end in [(0, 1000), (1000, 1001), (1001, 2500), (2500, len(rows))]:
        index.add(rows[begin:end])
        index.search(rows[:3], 2)
    assert made == [1000]
    same(index.search(rows[:60], 5), whole.search(rows[:60], 5))
    assert made == [1000, len(rows)]  # of `whole`
    if hasattr(index, "nprobe"):
        index.set_direct_map_type(ours.DirectMap.NoMap)
        whole.set_direct_map_type(ours.DirectMap.NoMap)
    for each in (index, whole):
        each.remove_ids(np.arange(500))
        each.add(rows[:20])
    same(index.search(rows[:60], 5), whole.search(rows[:60], 5))
    assert made == [1000, len(rows)]


@pytest.mark.parametrize("most", [0, 64])
@pytest.mark.parametrize("string", GROWING)
def test_histories_of_what_is_searched(rows, string, most, monkeypatch):
    """After any additions, removals and updates, whether there were searches in between or not, the
    answers of an index that is made of the rows of now; also of codes that are searched as they
    are."""
    random = np.random.default_rng(1)
    index = ours.index_factory(12, string)
    index.train(rows)
    index.add(rows[:200])
    lists = hasattr(index, "nprobe")
    if lists:
        index.nprobe = 20
    for step in range(60):
        change = random.integers(0, 10)
        if change < 4:
            begin = int(random.integers(0, 2000))
            index.add(rows[begin : begin + int(random.choice([1, 3, 60]))])
        elif change < 8:
            ids = index._store.ids
            gone = ids[random.random(len(ids)) < random.choice([0.005, 0.1])]
            index.remove_ids(gone)
        elif lists and change == 8 and index.ntotal:
            index.set_direct_map_type(ours.DirectMap.Hashtable)
            index.update_vectors(index._store.ids[:1], rows[step : step + 1])
            index.set_direct_map_type(ours.DirectMap.NoMap)
        if random.random() < 0.6:
            continue
        anew = ours.clone_index(index)  # which makes what it searches of all rows
        allowed = None
        if random.random() < 0.5:
            some = index._store.ids[random.random(index.ntotal) < 0.5]
            params = dict(sel=ours.IDSelectorBatch(some))
            if lists:
                allowed = ours.SearchParametersIVF(nprobe=20, **params)
            elif string.startswith("PQ"):
                allowed = ours.SearchParametersPQ(**params)
            else:
                allowed = ours.SearchParameters(**params)
        found = []
        for each, pairs in [(index, most), (anew, 0)]:
            search_without_index(monkeypatch, pairs)
            found.append(each.search(rows[:30], 6, params=allowed))
        np.testing.assert_array_equal(found[0][1], found[1][1])
        np.testing.assert_array_equal(found[0][0], found[1][0])
        ranges = [each.range_search(rows[:9], 3.0, params=allowed) for each in (index, anew)]
        for a, b in zip(*ranges, strict=True):
            np.testing.assert_array_equal(a, b)
