"""knear.faiss: what range_search() of every kind of index finds, in what order, and where it ends
before the last list."""

import numpy as np
import pytest
from faiss_pair import METRICS, across, asked, filled, needs_faiss, ours, refused, sets, theirs


@pytest.mark.parametrize("string", ["Flat", "SQfp16", "IVF1,Flat", "IDMap,Flat", "SQfp16,RFlat"])
def test_ranges_end_before_the_radius(string, faiss):
    x = np.array([[0, 0], [1, 0], [2, 0], [3, 0]], np.float32)
    for metric, radius, expected in ((1, 4, {0, 1}), (0, 2, {3})):
        index = faiss.index_factory(2, string, metric)
        index.train(x)
        if string.startswith("IDMap"):
            index.add_with_ids(x, np.arange(4))
        else:
            index.add(x)
        asked = x[:1] if metric else x[1:2]
        assert sets(index.range_search(asked, radius)) == [expected]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("string", ["Flat", "SQ8", "IVF20,Flat", "IVF20(IVF5,Flat),Flat"])
def test_ranges_are_in_order_of_adding(rows, string, metric):
    index = ours.index_factory(12, string, metric)
    if "(" in string:
        index.quantizer.make_direct_map()
    index.train(rows)
    index.add(rows)
    asked(ours, index)
    radius = 2.0 if metric else 15.0
    found = [index.range_search(rows[:50], radius)]
    if "IVF" in string:
        lists = index.quantizer.search(rows[:50], 5)[1]
        found.append(index.range_search_preassigned(rows[:50], radius, lists))
        assert sets(found[0]) == sets(found[1])
    for begin, _, ids in found:
        assert begin[-1] > 200
        for a, b in zip(begin.astype(int), begin[1:].astype(int), strict=False):
            assert (np.diff(ids[a:b]) > 0).all()


@needs_faiss
@pytest.mark.parametrize("empties", [1, 2, 5])
@pytest.mark.parametrize("metric", METRICS)
def test_range_searches_that_end_early(rows, metric, empties):
    index = filled(ours, "IVF40,Flat", metric, rows)
    radius = 1.0 if metric else 12.0
    found = []
    for module, each in ((ours, index), (theirs, across(theirs, index))):
        params = module.SearchParametersIVF(nprobe=40, max_empty_result_buckets=empties)
        found.append(each.range_search(rows[:60], radius, params=params))
        each.parallel_mode = 1
        with refused():
            each.range_search(rows[:60], radius, params=params)
        each.parallel_mode = 0
    assert sets(found[0]) == sets(found[1])
    assert found[0][0][-1] <= index.range_search(rows[:60], radius)[0][-1]
