"""knear.faiss: VectorTransform, and IndexPreTransform, which changes what goes into another index
and turns back what comes out."""

import numpy as np
from faiss_pair import needs_faiss, ours, refused, same, theirs


@needs_faiss
def test_transforms(rows):
    for power, bins in ((0, 0), (-0.5, 0), (0, 2)):
        found = []
        for module in (ours, theirs):
            pca = module.PCAMatrix(12, 6, power)
            pca.balanced_bins = bins
            pca.train(rows)
            found.append(pca.apply(rows))
            values = module.vector_to_array(pca.eigenvalues)
            assert values.shape == (12,) and module.vector_to_array(pca.A).shape == (72,)
        lengths = [np.sort(np.square(y).mean(0)) for y in found]
        np.testing.assert_allclose(lengths[0], lengths[1], rtol=1e-3)
    losses = []
    for module in (ours, theirs):
        opq = module.OPQMatrix(12, 3)
        opq.niter = 10
        opq.train(rows)
        turned = opq.apply(rows)
        np.testing.assert_allclose(opq.reverse_transform(turned), rows, atol=1e-4)
        pq = module.ProductQuantizer(12, 3, 8)
        pq.train(turned)
        losses.append(np.square(pq.decode(pq.compute_codes(turned)) - turned).sum())
    assert losses[0] < losses[1] * 1.05
    for uniform in (True, False):
        for out in (5, 12, 20):
            a, b = (m.RemapDimensionsTransform(12, out, uniform) for m in (ours, theirs))
            np.testing.assert_array_equal(a.apply(rows), b.apply(rows))
    a, b = (module.NormalizationTransform(12).apply(rows) for module in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    a, b = (module.CenteringTransform(12) for module in (ours, theirs))
    a.train(rows)
    b.train(rows)
    np.testing.assert_allclose(a.apply(rows), b.apply(rows), atol=1e-5)
    rotation = ours.RandomRotationMatrix(12, 12)
    rotation.init(3)
    np.testing.assert_allclose(rotation.reverse_transform(rotation.apply(rows)), rows, atol=1e-5)
    linear = ours.LinearTransform(3, 2, True)
    ours.copy_array_to_vector(np.arange(6, dtype=np.float32), linear.A)
    ours.copy_array_to_vector(np.ones(2, np.float32), linear.b)
    linear.is_trained = True
    np.testing.assert_array_equal(linear.apply([[1, 1, 1]]), [[4, 13]])
    with refused():
        linear.reverse_transform([[4, 13]])


def test_transforms_before(rows, faiss):
    pca = faiss.PCAMatrix(12, 8)
    index = faiss.IndexPreTransform(pca, faiss.index_factory(8, "IVF20,Flat"))
    assert (index.d, index.chain.size()) == (12, 1) and not index.is_trained
    index.train(rows)
    index.add_with_ids(rows, np.arange(3000) + 5)
    faiss.extract_index_ivf(index).nprobe = 20
    params = faiss.SearchParametersPreTransform(
        index_params=faiss.SearchParametersIVF(nprobe=1, sel=faiss.IDSelectorRange(5, 25))
    )
    ids = index.search(rows[:20], 3, params=params)[1]
    assert ids.max() < 25 and (ids[:, 0] == np.arange(5, 25)).all()
    flat = faiss.IndexFlatL2(8)
    flat.add(pca.apply(rows))
    expected = flat.search(pca.apply(rows[:20]), 3)
    found = index.search(rows[:20], 3)
    same((found[0], found[1] - 5), expected)
    with refused():
        faiss.IndexPreTransform(faiss.PCAMatrix(12, 7), faiss.IndexFlatL2(8))
    assert index.remove_ids(np.arange(10)) == 5
    with refused():
        faiss.extract_index_ivf(faiss.IndexFlatL2(8))
    assert faiss.try_extract_index_ivf(faiss.IndexFlatL2(8)) is None


def test_found_vectors_of_lists(rows, faiss):
    """A transform around lists turns back what a search of these found, without a direct map."""
    index = faiss.index_factory(12, "PCAR12,IVF20,Flat")
    index.train(rows)
    index.add(rows)
    _, ids, vectors = index.search_and_reconstruct(rows[:20], 3)
    np.testing.assert_allclose(vectors[ids >= 0], rows[ids[ids >= 0]], atol=1e-4)
    with refused():
        index.reconstruct(3)


def test_reading_vectors_leaves_the_direct_map(rows, monkeypatch):
    """Another thread may ask for it meanwhile."""
    index = ours.index_factory(12, "PCAR12,IVF20,Flat")
    index.train(rows)
    index.add(rows)
    lists, seen = ours.extract_index_ivf(index), []
    decode = ours.IndexIVFFlat._decode_rows

    def spy(self, rows):
        seen.append(lists.direct_map.no())
        return decode(self, rows)

    monkeypatch.setattr(ours.IndexIVFFlat, "_decode_rows", spy)
    index.search_and_reconstruct(rows[:20], 3)
    assert seen == [True]
