"""knear.faiss: every kind of index that has a factory string: trained by each of the two for
itself, and the same index in both by its file. Recall, searches, copies, codes."""

import copy
import pickle

import numpy as np
import pytest
from faiss_pair import (
    METRICS,
    asked,
    filled,
    index_module,
    near,
    near_sets,
    needs_faiss,
    ours,
    refused,
    same,
    theirs,
)

STRINGS = [
    "Flat", "PQ4np", "PQ4x6np", "PQ6x4np", "SQ8", "SQ6", "SQ4", "SQfp16", "SQbf16",
    "IVF20,Flat", "IVF20,PQ4np", "IVF20,PQ4x6np", "IVF20,PQ6x4np", "IVF20,SQ8", "IVF20,SQ6",
    "IVF20,SQfp16", "PCA8,Flat", "PCAR8,IVF20,SQ8", "PCAW8,Flat", "OPQ4_8,IVF20,PQ4np",
    "L2norm,Flat", "RR14,IVF20,Flat", "Pad16,IVF20,PQ4np", "IDMap,IVF20,Flat", "IDMap2,PQ4np",
    "IVF20,PQ4np,RFlat", "PQ4np,Refine(SQ8)", "SQ4,Refine(SQfp16)", "IVF60(IVF10,Flat),Flat",
    "IDMap2,PCA8,Flat", "L2norm,PCA8,IVF20,Flat",
]  # fmt: skip


@needs_faiss
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("string", STRINGS)
def test_kinds(rows, string, metric, tmp_path):
    if "(IVF" in string and metric == 0:
        pytest.skip("lists of products found by lists of products find little in both")
    queries = rows[:200] + np.float32(0.05)
    truth = theirs.knn(queries, rows, 10, metric)[1]
    scale = 2 if string.startswith("IDMap") else 1
    recalls = []
    for module in (ours, theirs):
        index = filled(module, string, metric, rows)
        found = index.search(queries, 10)[1] // scale
        recalls.append(ours.eval_intersection(found, truth) / truth.size)
    # Codes of 3 bytes or less by products: other seeds give either of the two 0.035 more.
    spread = 0.05 if metric == 0 and ("x4" in string or "x6" in string) else 0.02
    assert recalls[0] > recalls[1] - spread, recalls
    # The same index in both: what FAISS trained, read by ours, and back.
    index = filled(theirs, string, metric, rows)
    path = str(tmp_path / "a.faiss")
    theirs.write_index(index, path)
    read = ours.read_index(path)
    asked(ours, read)
    assert (read.ntotal, read.d, read.is_trained) == (3000, 12, True)
    near(read.search(queries, 10), index.search(queries, 10), string)
    radius = float(np.median(read.search(queries, 10)[0][:, 6]))
    ranges = []
    for each in (index, read):
        if hasattr(each, "k_factor"):  # of the radius
            each.k_factor = 1.5 if metric else 0.7
        ranges.append(each.range_search(queries, radius))
        asked(index_module(each), each)
    assert len(ranges[1][2]) > 100
    near_sets(*ranges, radius, metric)
    ours.write_index(read, path)
    back = theirs.read_index(path)
    asked(theirs, back)
    near(back.search(queries, 10), index.search(queries, 10), string)
    for again in (
        pickle.loads(pickle.dumps(read)),
        copy.deepcopy(read),
        ours.clone_index(read),
        ours.deserialize_index(ours.serialize_index(read)),
    ):
        asked(ours, again)
        same(again.search(queries[:20], 5), read.search(queries[:20], 5))
    again.reset()
    assert (again.ntotal, read.ntotal) == (0, 3000)
    # Ours, made by ours, read by FAISS.
    mine = filled(ours, string, metric, rows)
    ours.write_index(mine, path)
    other = theirs.read_index(path)
    asked(theirs, other)
    near(mine.search(queries, 10), other.search(queries, 10), string)
    # Codes alone.
    if "IDMap" not in string and "Refine" not in string and "RFlat" not in string:
        codes = read.sa_encode(rows[:300])
        expected = index.sa_encode(rows[:300])
        assert codes.shape == expected.shape
        if "," not in string or string.startswith("IVF"):
            assert (codes == expected).mean() > 0.99
        if "PCAW" in string:  # which FAISS undoes wrongly once it is read from a file
            with refused():
                read.sa_decode(expected)
        elif "(IVF" not in string:
            np.testing.assert_allclose(
                read.sa_decode(expected), index.sa_decode(expected), atol=1e-4
            )
