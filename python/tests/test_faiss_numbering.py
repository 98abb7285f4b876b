"""Numbers of rows after removals, and what a removal of few ids leaves alone."""

import knear.faiss as ours
import numpy as np
import pytest
from knear.faiss import codes, selectors, store
from knear.faiss.numbering import Numbering


@pytest.mark.parametrize("few", [0, 3, 10**6])
def test_numbers_are_those_of_a_list(few, monkeypatch):
    """Any changes, as of a plain list of the first numbers; each leaves the numbering before."""
    monkeypatch.setattr("knear.faiss.numbering._FEW", few)
    random = np.random.default_rng(few)
    numbering, first, last = Numbering(20), list(range(20)), 20
    for _ in range(400):
        before, had = numbering, list(first)
        if random.random() < 0.5:
            last += int(random.choice([0, 0, 5]))  # numbers that belong to no row
            count = int(random.integers(0, 6))
            numbering = numbering.with_rows(last, count)
            first += range(last, last + count)
            last += count
        elif first:
            share = random.random(len(first)) < random.choice([0.03, 0.2])
            gone = np.flatnonzero(share)
            numbering = numbering.without(gone)
            first = [each for each, out in zip(first, share, strict=True) if not out]
        for now, expected in ((numbering, first), (before, had)):
            assert now.size == len(expected)
            rows = np.arange(len(expected))
            np.testing.assert_array_equal(now.all(), expected)
            np.testing.assert_array_equal(now.first(rows[::-1]), expected[::-1])
            asked = np.array([-1, *expected[::-1], -1])
            np.testing.assert_array_equal(now.rows(asked), [-1, *rows[::-1], -1])
        assert numbering.is_plain() == (first == list(range(len(first))))


@pytest.mark.parametrize("string", ["Flat", "SQ8", "PQ4x4np", "IVF8,Flat", "IVF8,SQ8"])
def test_a_removal_of_few_ids_looks_at_no_others(string, monkeypatch):
    """No id but those is asked for, no array of all rows is moved, and no index is made anew."""
    x = np.random.default_rng(1).standard_normal((3000, 12)).astype(np.float32)
    monkeypatch.setattr(codes, "PAIRS_OF_AN_INDEX", 0)
    monkeypatch.setattr(codes, "FEW_PAIRS", 0)
    index = ours.index_factory(12, string)
    index.train(x)
    index.add(x)
    index.search(x[:9], 5)
    with monkeypatch.context() as patch:
        patch.setattr(selectors._OfIds, "mask", None)
        patch.setattr(store, "_close_gaps", None)
        patch.setattr(codes.Coded, "_searched_anew", None)
        for gone in ([7], [2999 - 5, 100], [0]):
            assert index.remove_ids(np.array(gone)) == len(gone)
            found = index.search(x[:9], 5)
        assert index.remove_ids(np.array([-4, 10**9])) == 0
        assert index.ntotal == 2996
        index.add(x[:3])
        found = index.search(x[:9], 5)
    expected = ours.clone_index(index)  # which makes what it searches of the rows of now
    for got, want in zip(found, expected.search(x[:9], 5), strict=True):
        np.testing.assert_array_equal(got, want)


def test_ids_that_do_not_go_up_are_looked_for_among_all():
    x = np.random.default_rng(1).standard_normal((300, 6)).astype(np.float32)
    index = ours.index_factory(6, "IVF4,Flat")
    index.train(x)
    ids = np.random.default_rng(2).permutation(300) // 2  # each twice
    index.add_with_ids(x, ids)
    assert index._store.find(np.array([5])) is None
    assert index.remove_ids(np.array([5, 5, 9])) == 4
    assert index.ntotal == 296 and not np.isin(index._store.ids, [5, 9]).any()


def test_masks_of_all_ids():
    for ids in ([3, 5, 5], [-2, 0], [400, 10**12], []):
        for kind in (ours.IDSelectorArray, ours.IDSelectorBatch):
            selector = kind(np.array(ids, np.int64))
            for size in (0, 1, 6, 500):
                expected = np.isin(np.arange(size), ids)
                np.testing.assert_array_equal(selector.mask_to(size), expected)
