"""knear.faiss: the names of FAISS, each here or refused with knear's way, so that a script says
what it lacks; and the guide to them, which runs."""

import doctest
import re
from pathlib import Path

import pytest
from faiss_pair import needs_faiss, ours, theirs

UNNAMED = {"IndexIVFInterface", "IndexIVFPQStats",
           "IndexPQStats", "IndexRowwiseMinMaxBase", "Level1Quantizer", "Quantizer"}  # fmt: skip


def test_what_is_not_there():
    for make in (
        lambda: ours.IndexHNSWFlat(12, 32),
        lambda: ours.IndexLSH(12, 24),
        lambda: ours.IndexBinaryFlat(16),
        lambda: ours.IndexShards(12),
        lambda: ours.IndexPQ(12, 4, 8, ours.METRIC_L1),
        lambda: ours.index_factory(12, "HNSW32"),
        lambda: ours.index_factory(12, "IVF100_HNSW32,PQ4"),
        lambda: ours.index_factory(12, "IVF100,PQ4x4fs"),
        lambda: ours.index_factory(12, "LSH"),
        lambda: ours.StandardGpuResources,
        lambda: ours.Kmeans(12, 3, gpu=True),
        lambda: ours.GpuIndexBinaryFlat,
        lambda: ours.GpuParameterSpace,
        lambda: ours.IndexBinaryHNSWCagra(12),
        lambda: ours.ArrayInvertedLists(4, 8),
        lambda: ours.index_factory(12, "IVF20,Flat", 1, False),
        lambda: ours.IndexIVFFlat(ours.IndexFlatL2(12), 12, 20, 1, False),
        lambda: ours.IndexIVFPQ(ours.IndexFlatL2(12), 12, 20, 4, 8, 1, False),
        lambda: ours.IndexIVFScalarQuantizer(ours.IndexFlatL2(12), 12, 20, 0, 1, True, False),
    ):
        with pytest.raises(NotImplementedError, match=r"\w") as missing:
            make()
        assert "\n" not in str(missing.value)
    assert not hasattr(ours, "StandardGpuResources") and not hasattr(ours, "IndexFooBar")
    assert not hasattr(ours, "GpuIndexBinaryFlat") and hasattr(ours, "index_cpu_to_all_gpus")
    lists = ours.index_factory(12, "IVF20,Flat", 1, True).invlists
    assert isinstance(lists, ours.ArrayInvertedLists) and lists.nlist == 20


@needs_faiss
def test_every_class_of_faiss_is_known():
    """Indexes and transforms by name: here, or with knear's way."""
    for name in dir(theirs):
        if isinstance(getattr(theirs, name), type) and (
            name.startswith("Index") or name.endswith(("Transform", "Matrix", "Quantizer"))
        ):
            assert name in UNNAMED or hasattr(ours, name), name


def test_the_guide_runs():
    """docs/from_faiss.md, and the example of the module."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "from_faiss.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(code, str(guide), "exec"), names)
    assert names["ids"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert doctest.testmod(ours).failed == 0
