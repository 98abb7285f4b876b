"""Parts of a base that are searched apart and merged: the bits of one index."""

import numpy as np
import pytest

import knear


def parts_of(x, cuts, factory="Flat", metric="l2"):
    like = knear.Index(factory, dim=x.shape[1], metric=metric)
    if not like.is_trained:
        like.train(x)
    parts = []
    for first, end in zip([0, *cuts], [*cuts, len(x)], strict=True):
        part = like.__copy__()
        part.add(x[first:end], ids=np.arange(first, end))
        parts.append(part)
    like.add(x)
    return like, parts


@pytest.fixture
def x():
    """Whole numbers, so that there are ties."""
    return np.random.default_rng(1).integers(-2, 3, (600, 6)).astype(np.float32)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "IVF8,PQ3"])
def test_merged_parts_are_the_answer_of_one_index(x, metric, factory):
    one, parts = parts_of(x, [1, 250, 250, 599], factory, metric)
    probes = 3 if one.lists else None
    for k in (1, 7, 300, 700):
        found = [part.search_part(x[:50], k, probes=probes) for part in parts]
        whole = one.search(x[:50], k, probes=probes)
        # In one step, or some first, in any order.
        for merged in (
            knear.merge_parts(found, k),
            knear.merge_parts([knear.merge_parts(found[3:], k), *found[2::-1]], k, threads=1),
        ):
            assert (merged.keys[:, 1:] >= merged.keys[:, :-1]).all()
            rounded = merged.rounded(k, metric)
            assert rounded.ids.tolist() == whole.ids.tolist()
            assert rounded.distances.tobytes() == whole.distances.tobytes()


def test_keys_decide_what_float32_cannot(x):
    base = np.array([[1.0], [1.0 + 2**-30], [1.0 - 2**-30]])
    parts = [knear.Index("Flat", dim=1) for _ in base]
    for number, (part, row) in enumerate(zip(parts, base, strict=True)):
        part.add(row[None], ids=[number])
    query = np.array([[3.0]])
    found = knear.merge_parts([part.search_part(query, 1) for part in parts], 3)
    assert found.ids.tolist() == [[1, 0, 2]]
    assert len(set(found.rounded(3).distances.ravel().tolist())) == 1


def test_what_is_refused(x):
    one, parts = parts_of(x, [300])
    found = [part.search_part(x[:5], 3) for part in parts]
    with pytest.raises(knear.InvalidArgument, match="at least one"):
        knear.merge_parts([], 3)
    with pytest.raises(knear.InvalidArgument, match="parts must be several PartResult"):
        knear.merge_parts(None, 3)
    for k in (0, -1):
        with pytest.raises(knear.InvalidArgument, match="k must be at least 1"):
            knear.merge_parts(found, k)
        with pytest.raises(knear.InvalidArgument, match="k must be at least 1"):
            found[0].rounded(k)
        with pytest.raises(knear.InvalidArgument, match="k must be at least 1"):
            one.search_part(x[:5], k)
    with pytest.raises(knear.ShapeMismatch, match="part 1 has 4 queries, part 0 has 5"):
        knear.merge_parts([found[0], parts[1].search_part(x[:4], 3)], 3)
    with pytest.raises(knear.ShapeMismatch, match=r"keys are \[5 x 3\], ids are \[5 x 2\]"):
        knear.merge_parts([(found[0].keys, found[0].ids[:, :2])], 3)
    with pytest.raises(knear.InvalidArgument, match="part 1 must be a knear.PartResult"):
        knear.merge_parts([found[0], None], 3)
    with pytest.raises(knear.InvalidArgument, match="part 0 must have keys of float64"):
        knear.merge_parts([one.search(x[:5], 3)], 3)
    with pytest.raises(knear.InvalidArgument, match="metric"):
        found[0].rounded(3, "l3")
    with pytest.raises(knear.InvalidArgument, match="2 shards"):
        knear.Index("Flat", dim=6, shards=2).search_part(x[:5], 3)
    with pytest.raises(knear.ShapeMismatch, match="columns"):
        one.search_part(x[:5, :3], 3)


def test_graphs_and_refined_codes_are_searched_as_far_as_is_asked(x):
    for factory, words in (("Graph8", {"ef": 40}), ("PQ3,Refine(SQ8)", {"refine_factor": 1})):
        one, _ = parts_of(x, [300], factory)
        whole = one.search(x[:20], 5, **words)
        rounded = one.search_part(x[:20], 5, **words).rounded(5)
        assert rounded.ids.tolist() == whole.ids.tolist()
        assert rounded.distances.tobytes() == whole.distances.tobytes()
    fewer, more = (one.search_part(x[:20], 5, refine_factor=n).ids.tolist() for n in (1, 100))
    assert fewer != more


def test_the_report_is_that_of_the_part(x):
    _, parts = parts_of(x, [300])
    report = {"old": 1}
    parts[0].search_part(x[:5], 3, report=report)
    assert report["rows"] == 300
    assert "old" not in report
