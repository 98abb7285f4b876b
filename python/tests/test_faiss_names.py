"""knear.faiss: the names of FAISS, each here or refused with knear's way, so that a script says
what it lacks; and the guide to them, which runs."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from faiss_pair import needs_faiss, ours, theirs

# Names that FAISS's modules leave behind.
LEFT = {"base_prefix", "depr_prefix", "deprecated_name_map", "loaded", "logger", "obj",
        "opt_env_variable_name", "opt_level", "symbol", "the_class", "this_module",
        "vector_name_map"}  # fmt: skip


def test_what_is_not_there():
    for make in (
        lambda: ours.IndexHNSWFlat(12, 32),
        lambda: ours.IndexLSH(12, 24),
        lambda: ours.IndexBinaryIVF(16),
        lambda: ours.IndexShardsIVF(12),
        lambda: ours.IndexPQ(12, 4, 8, ours.METRIC_L1),
        lambda: ours.index_factory(12, "HNSW32"),
        lambda: ours.index_factory(12, "IVF100_HNSW32,PQ4"),
        lambda: ours.index_factory(12, "IVF100,PQ4x4fs"),
        lambda: ours.index_factory(12, "LSH"),
        lambda: ours.StandardGpuResources,
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
def test_every_name_of_faiss_is_known():
    """Here, or with knear's way; what is no class or function is refused at once."""
    for name in dir(theirs):
        what = getattr(theirs, name)
        if name.startswith("_") or name in LEFT or isinstance(what, ModuleType):
            continue
        if callable(what):
            assert hasattr(ours, name), name
        try:
            mine = getattr(ours, name)
        except NotImplementedError as error:
            assert f"knear.faiss.{name}: " in str(error), name
            continue
        if type(mine) is type(ours.IndexHNSW):
            for use in (mine, lambda mine=mine: mine.something):
                with pytest.raises(NotImplementedError, match=rf"^knear\.faiss\.{name}"):
                    use()
        else:
            assert callable(mine) == callable(what), name
    with pytest.raises(NotImplementedError, match="hnsw_stats"):
        _ = ours.cvar.hnsw_stats


@needs_faiss
def test_a_class_of_faiss_is_below_the_same_ones():
    """But for those that FAISS has twice, and knear.faiss once by both names."""
    names = [name for name in dir(ours) if inspect.isclass(getattr(theirs, name, None))
             and inspect.isclass(getattr(ours, name)) and name not in ours.WAYS]  # fmt: skip
    twice = {"IndexIVFInterface", "Level1Quantizer", "InvertedLists", "ZeroCopyIOReader"}
    for name in names:
        for above in names:
            if name in twice or name.startswith("Map") or "Vector" in name:
                continue
            if issubclass(getattr(theirs, name), getattr(theirs, above)):
                assert issubclass(getattr(ours, name), getattr(ours, above)), (name, above)
            elif getattr(ours, name) is not getattr(ours, above):
                assert not issubclass(getattr(ours, name), getattr(ours, above)), (name, above)


@pytest.mark.parametrize(
    "module", ["client_server", "rpc", "torch", "torch.clustering", "torch_utils"]
)
def test_modules_of_contrib_that_are_not_there(module):
    with pytest.raises(ImportError, match=r"knear.faiss.contrib.\w+ is not there"):
        importlib.import_module(f"knear.faiss.contrib.{module}")


@pytest.mark.parametrize(
    "string, way",
    [("HR64,Flat", "RR64 and OPQ16_64 rotate"), ("ITQ8,LSH", "RR64 and OPQ16_64 rotate"),
     ("LSH", "PQ, SQ8"), ("IVF20,FlatDedup", "equal vectors"), ("RQ3x8", "PQ, SQ8")],
)  # fmt: skip
def test_parts_of_factory_strings(string, way):
    with pytest.raises(NotImplementedError, match=way):
        ours.index_factory(12, string)


def test_the_guide_runs():
    """docs/from_faiss.md, and the example of the module."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "from_faiss.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(code, str(guide), "exec"), names)
    assert names["ids"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert doctest.testmod(ours).failed == 0
