"""Index(device=): where searches run by default, and queries on a GPU that are used in place."""

import pickle

import numpy as np
import pytest
from pretended_arrays import Interface, Pretender, answer

import knear
from knear import _core, _device

X = np.random.default_rng(3).standard_normal((60, 5)).astype(np.float32)


def filled(**words):
    index = knear.Index("Flat", dim=5, **words)
    index.add(X)
    return index


@pytest.mark.skipif(_core.has_cuda, reason="this knear was built with CUDA")
def test_a_gpu_that_cannot_be_is_refused_at_construction(tmp_path):
    path = tmp_path / "index.knear"
    filled().save(path)
    for device in ("cuda", "cuda:1", "cuda:0,1"):
        words = f"^device is {device}, but this knear was built without CUDA$"
        for make in (
            lambda device=device: knear.Index("Flat", dim=5, device=device),
            lambda device=device: knear.Index.load(path, device=device),
            lambda device=device: filled().search(X, 1, device=device),
            lambda device=device: knear.knn(X, X, 1, device=device),
        ):
            with pytest.raises(knear.DeviceUnavailable, match=words):
                make()


def test_nonsense_is_refused_at_construction():
    for device in ("gpu", "cuda:", "cuda:0,", "cuda:0,cuda:1", "cuda:-1"):
        with pytest.raises(
            knear.InvalidArgument,
            match="^device must be cpu, cuda or cuda:N, or cuda:N,N,... of several GPUs, but is",
        ):
            knear.Index("Flat", dim=5, device=device)
    with pytest.raises(knear.InvalidArgument, match="'cuda:1,1', which names GPU 1 twice"):
        knear.Index("Flat", dim=5, device="cuda:1,1")
    with pytest.raises(knear.InvalidArgument, match="device must be text"):
        knear.Index("Flat", dim=5, device=0)


def test_an_index_of_the_processor_says_so(tmp_path):
    index = filled(device="cpu")
    assert index.device == "cpu"
    assert filled().device is None
    report = {}
    index.search(X[:3], 2, report=report)
    assert report["device"] == "cpu"
    index.save(tmp_path / "index.knear")
    assert knear.Index.load(tmp_path / "index.knear").device is None
    assert knear.Index.load(tmp_path / "index.knear", device="cpu").device == "cpu"
    assert pickle.loads(pickle.dumps(index)).device == "cpu"


def same(found, want, number):
    for got, wanted in zip(found, want, strict=True):
        assert isinstance(got, knear.DeviceArray)
        assert got.__dlpack_device__() == (2, number)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(answer(got), wanted)


@pytest.mark.parametrize("kind", [Pretender, Interface])
def test_queries_of_the_gpu_are_used_in_place(pretended, monkeypatch, kind):
    monkeypatch.setattr(_core, "check_device", lambda device: None)
    q, want = X[:7].copy(), filled().search(X[:7], 4)
    pretended.devices[q.ctypes.data] = 2
    there = Pretender(q, (2, 2)) if kind is Pretender else kind(q)
    for device, said in (
        (None, None),
        ("cuda", None),
        ("cuda:2", None),
        ("cpu", "cuda"),
        (None, "cuda:2"),
    ):
        pretended.searches.clear()
        found = filled(device=device).search(there, 4, device=said, threads=2)
        same(found, want, 2)
        queries, number, k, settings, *_ = pretended.searches[0]
        assert queries == (q.ctypes.data, "f32", 7, 5)
        assert (number, k) == (2, 4)
        assert settings.words[:3] == (2, 0, "cuda:2")
        assert found.plan["device"] == "cuda:2"
    assert not pretended.copies
    # A filter is as ever.
    found = filled(device="cuda:2").search(there, 4, filter=np.arange(0, 60, 2))
    same(found, filled().search(q, 4, filter=np.arange(0, 60, 2)), 2)


def test_what_is_not_used_in_place_is_copied(pretended, monkeypatch):
    monkeypatch.setattr(_core, "check_device", lambda device: None)
    wide = np.arange(80, dtype=np.float32).reshape(8, 10)
    for view in (wide[:, :5], np.asfortranarray(wide[:, :5]), wide.astype(np.int32), wide[0]):
        assert _device.rows_in_place("q", Pretender(view)) is None
    assert _device.rows_in_place("q", Pretender(wide)).address == wide.ctypes.data
    shards = filled(device="cpu", shards=2)
    same(shards.search(Pretender(X[:4]), 3), filled().search(X[:4], 3), 0)
    # An index that is searched somewhere else.
    same(filled(device="cpu").search(Pretender(X[:4]), 3), filled().search(X[:4], 3), 0)
    assert not pretended.searches
    assert len(pretended.copies) == 2
    with pytest.raises(knear.InvalidArgument, match="out is given, but q is on a GPU"):
        filled().search(Pretender(X[:4]), 3, out=(np.empty((4, 3), "f4"), np.empty((4, 3), "i8")))
