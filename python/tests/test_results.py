"""What searches return and how they are called: named tuples with a plan, buffers, options,
progress; and the examples of the docstrings."""

import copy
import doctest
import importlib.util
import inspect
import pickle
import re
import sys
import types

import numpy as np
import pytest

import knear


def public():
    """What the package offers, by name, with the methods and properties of its classes."""
    for name in knear.__all__:
        thing = getattr(knear, name)
        yield name, thing
        if not inspect.isclass(thing):
            continue
        for owner in thing.__mro__:
            for member in vars(owner) if owner.__module__.startswith("knear.") else ():
                what = getattr(thing, member)
                if not member.startswith("_") and (callable(what) or isinstance(what, property)):
                    yield f"{name}.{member}", what


FINDER = doctest.DocTestFinder(recurse=False)


def examples_of(name, thing):
    return [each for test in FINDER.find(thing, name, globs={}) for each in test.examples]


def test_the_examples_of_the_docstrings_run():
    runner = doctest.DocTestRunner()
    for name, thing in public():
        if name.endswith(".to_arrow") and importlib.util.find_spec("pyarrow") is None:
            continue
        for test in FINDER.find(thing, name, globs={}):
            runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > 200


# An array of this class comes from a GPU alone.
WITHOUT_EXAMPLE = {"DeviceArray"}


def test_all_that_can_be_called_has_an_example_in_its_docstring():
    shown = {}  # by class: the code of all of its examples
    for name, thing in public():
        examples = examples_of(name, thing)
        owner = name.partition(".")[0]
        shown[owner] = shown.get(owner, "") + "".join(each.source for each in examples)
        is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
        if is_error and thing is not knear.Error:  # which shows how all are caught
            assert thing.__doc__, name
        elif name not in WITHOUT_EXAMPLE and not isinstance(thing, property):
            assert examples, f"{name} has no example"
    for name, thing in public():
        owner, _, member = name.partition(".")
        if isinstance(thing, property):
            assert thing.__doc__, name
            assert re.search(rf"\.{member}\b", shown[owner]), f"no example of {owner} has {member}"


def test_every_argument_is_named_in_the_docstring():
    for name, thing in public():
        error = inspect.isclass(thing) and issubclass(thing, BaseException)
        # What searches and choices return says what its fields are, and is not made by callers.
        made_by_knear = name in {"DeviceArray", "IndexChoice"}
        if isinstance(thing, property) or error or made_by_knear or thing is knear.SearchOptions:
            continue
        said = inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            said += inspect.getdoc(thing.__init__) or ""
        if re.search(r"arguments\s+and\s+errors\s+are\s+those\s+of", said):
            continue
        for argument in inspect.signature(thing).parameters.values():
            if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
                continue
            assert argument.name == "self" or re.search(rf"\b{argument.name}\b", said), (
                f"{name} says nothing of {argument.name}"
            )


def test_results_are_tuples_that_know_more(rng):
    base = rng.standard_normal((500, 8)).astype(np.float32)
    report = {}
    found = knear.knn(base[:3], base, 4, report=report)
    distances, ids = found
    assert isinstance(found, tuple) and len(found) == 2
    assert distances is found.distances is found[0] and ids is found.ids is found[1]
    assert found.plan == report and report["k"] == 4
    assert found.certified.tolist() == [True] * 3
    assert found.promised_recall == found.expected_recall == 1.0
    base[:250] += 100  # two clouds far from each other
    index = knear.Index("IVF2,Flat", dim=8)
    index.train(base)
    index.add(base)
    queries = np.concatenate([base[:25], np.full((25, 8), 50, np.float32)])
    some = index.search(queries, 4, probes=1, certify=True)
    assert 0 < some.certified.sum() < 50
    assert np.flatnonzero(~some.certified).tolist() == some.plan["uncertified"].tolist()
    assert not index.search(queries, 4, probes=1).certified.any()
    assert index.search(queries, 4, recall=1.0).certified.all()
    within = index.range_search(base[:3], 0.5, recall=1.0)
    assert within.begin is within[0] and len(within) == 3 and within.plan["queries"] == 3


def test_results_are_pickled_and_copied_with_their_plan(rng):
    base = rng.standard_normal((50, 8)).astype(np.float32)
    for found in (knear.knn(base[:3], base, 4), knear.range_search(base[:3], base, 1.0)):
        for same in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), copy.copy(found)):
            assert type(same) is type(found) and same.plan == found.plan
            for a, b in zip(same, found, strict=True):
                np.testing.assert_array_equal(a, b)


def test_buffers_take_the_answer(rng):
    base = rng.standard_normal((60, 8)).astype(np.float32)
    index = knear.Index("Flat", dim=8)
    index.add(base)
    want = knear.knn(base[:5], base, 3)
    joined = knear.self_join(base, 3)
    for search, rows in (
        (lambda out: knear.knn(base[:5], base, 3, out=out), want),
        (lambda out: index.search(base[:5], 3, out=out), want),
        (lambda out: knear.self_join(base, 3, out=out), joined),
    ):
        n = len(rows.ids)
        wide = np.full((n, 6), -7, np.int64)  # a view of every second column is taken too
        out = np.empty((n, 3), np.float32), wide[:, ::2]
        found = search(out)
        assert found.distances is out[0] and found.ids is out[1]
        np.testing.assert_array_equal(out[0], rows.distances)
        np.testing.assert_array_equal(wide[:, ::2], rows.ids)
        assert (wide[:, 1::2] == -7).all()
    d, i = np.empty((5, 3), np.float32), np.empty((5, 3), np.int64)
    fixed = i.copy()
    fixed.flags.writeable = False
    for bad, text in (
        ([d, i], "out must be a tuple"),
        ((d,), "out must be a tuple"),
        ((d.astype(np.float64), i), "distances must be a NumPy array of float32"),
        ((d, i.astype(np.int32)), "ids must be a NumPy array of int64"),
        ((d, i[:4]), r"ids must be \(5, 3\), but are \(4, 3\)"),
        ((d, fixed), "ids cannot be written to"),
    ):
        with pytest.raises(knear.InvalidArgument, match=text):
            knear.knn(base[:5], base, 3, out=bad)


def calls_with_out(x):
    """(name, call, whether out is a tuple)"""
    km, pca = knear.KMeans(8, iterations=2).train(x), knear.PCA(4).train(x)
    yield "assign", lambda **more: km.assign(x, **more), True
    yield "apply", lambda **more: pca.apply(x, **more), False
    yield "inverse", lambda **more: pca.inverse(x[:, :4], **more), False
    for name, coder in (("PQ", knear.ProductQuantizer(4, 4)), ("SQ", knear.ScalarQuantizer())):
        codes = coder.train(x).encode(x)
        yield name + " encode", lambda coder=coder, **more: coder.encode(x, **more), False
        yield (
            name + " decode",
            lambda coder=coder, codes=codes, **more: coder.decode(codes, **more),
            False,
        )
        yield (
            name + " distances",
            lambda coder=coder, codes=codes, **more: coder.distances(x[:3], codes, **more),
            False,
        )
    yield "select_k", lambda **more: knear.select_k(x, 3, **more), True
    yield "select_k f64", lambda **more: knear.select_k(x.astype(np.float64), 3, **more), True
    yield "select_k of one row", lambda **more: knear.select_k(x[0], 3, **more), True
    for dtype in (np.float32, np.float64, np.float16):
        index = knear.Index("Flat", dim=16)
        index.add(x.astype(dtype))
        yield "reconstruct", lambda index=index, **more: index.reconstruct([3, 1, 2], **more), False


def test_every_array_that_is_made_may_be_given(rng):
    x = rng.standard_normal((300, 16)).astype(np.float32)
    for name, call, several in calls_with_out(x):
        want = call()
        arrays = want if several else (want,)
        wide = [np.full((*a.shape[:-1], 2 * a.shape[-1]), 7, a.dtype) for a in arrays]
        for given in ([np.full_like(a, 7) for a in arrays], [each[..., ::2] for each in wide]):
            out = tuple(given) if several else given[0]
            found = call(out=out)
            for got, buffer, right in zip(
                found if several else (found,), given, arrays, strict=True
            ):
                assert got is buffer, name
                np.testing.assert_array_equal(got, right)
        fixed = arrays[-1].copy()
        fixed.flags.writeable = False
        other = np.empty(arrays[-1].shape, np.int16)
        short = arrays[-1][:-1].copy()
        for bad, text in (
            (other, "must be a NumPy array of .*: int16"),
            (short, r"must be \(.*\), but (is|are) \("),
            (fixed, "cannot be written to"),
            (arrays[-1].tolist(), "must be a NumPy array of .*: list"),
        ):
            with pytest.raises(knear.InvalidArgument, match=f"^out.* {text}"):
                call(out=(arrays[0], bad) if several else bad)
        if several:
            with pytest.raises(knear.InvalidArgument, match="out must be a tuple"):
                call(out=arrays[0])


def test_a_buffer_may_be_a_part_of_a_file(rng, tmp_path):
    x = rng.standard_normal((300, 16)).astype(np.float32)
    pq = knear.ProductQuantizer(4, 4).train(x)
    codes = np.memmap(tmp_path / "codes", np.uint8, "w+", shape=(300, pq.code_size))
    for begin in range(0, 300, 100):
        pq.encode(x[begin : begin + 100], out=codes[begin : begin + 100])
    np.testing.assert_array_equal(codes, pq.encode(x))


def test_all_rows_that_were_kept_have_more_columns(rng):
    base = rng.standard_normal((5000, 8)).astype(np.float32)
    index = knear.Index("Flat", dim=8)
    index.add(base)
    how = {"method": "partial-reduce", "aggregate_to_topk": False, "recall": 0.9}
    for search in (
        lambda **more: knear.knn(base[:2], base, 5, **how, **more),
        lambda **more: index.search(base[:2], 5, **how, **more),
    ):
        found = search()
        assert found.ids.shape == (2, found.plan["bins"] * found.plan["kept_per_bin"])
        out = np.empty((2, 5), np.float32), np.empty((2, 5), np.int64)
        with pytest.raises(knear.InvalidArgument, match="out is given, but aggregate_to_topk"):
            search(out=out)


def test_results_made_by_hand_have_no_plan(rng):
    base = rng.standard_normal((50, 8)).astype(np.float32)
    found = knear.knn(base[:3], base, 4)
    assert found._replace(ids=found.ids + 1).plan == found.plan
    made = knear.SearchResult(found.distances, found.ids)
    assert pickle.loads(pickle.dumps(made)).ids.shape == (3, 4)
    with pytest.raises(knear.InvalidArgument, match="this result was made by hand"):
        _ = made.plan


def test_options_are_a_group_of_their_own(rng):
    base = rng.standard_normal((300, 8)).astype(np.float32)
    index = knear.Index("Flat", dim=8)
    index.add(base)
    want = knear.knn(base[:5], base, 3)
    options = {"first_pass": "fp32", "choices": {"group": 1}, "method": "exact"}
    for search in (lambda **how: knear.knn(base[:5], base, 3, **how), lambda **how: index.search(
        base[:5], 3, **how)):  # fmt: skip
        found = search(**options)
        np.testing.assert_array_equal(found.ids, want.ids)
        assert found.plan["first_pass"] == "fp32" and found.plan["group"] == 1
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'firstpass'.*first_pass"):
            search(firstpass="fp32")
    with pytest.raises(TypeError, match="'method'"):
        knear.self_join(base, 3, method="exact")
    with pytest.raises(TypeError, match="'choices'"):
        index.range_search(base[:5], 1.0, choices={})
    names = list(inspect.signature(knear.knn).parameters)
    assert names[:6] == ["queries", "base", "k", "metric", "filter", "threads"]


def calls_with_progress(x, tmp_path):
    index = knear.Index("IVF64,PQ4x4", dim=16)
    yield "train", lambda progress: index.train(x, progress=progress)
    yield "add", lambda progress: index.add(x, progress=progress)
    yield "tune", lambda progress: index.tune(5, progress=progress)
    yield "search", lambda progress: index.search(x, 5, probes=64, progress=progress)
    yield "save", lambda progress: index.save(tmp_path / "x.knear", progress=progress)
    yield "knn", lambda progress: knear.knn(x, x, 10, progress=progress)
    yield "self_join", lambda progress: knear.self_join(x, 10, progress=progress)
    yield "range_search", lambda progress: knear.range_search(x, x, 1.0, progress=progress)
    yield "KMeans", lambda progress: knear.KMeans(64).train(x, progress=progress)
    yield "PCA", lambda progress: knear.PCA(8).train(x, progress=progress)
    yield "OPQ", lambda progress: knear.OPQ(4, bits=4).train(x, progress=progress)
    yield "PQ", lambda progress: knear.ProductQuantizer(4, 4).train(x, progress=progress)
    ids = np.arange(len(x))
    yield "replace", lambda progress: index.replace(ids, x, progress=progress)
    km, pca = knear.KMeans(64, iterations=2).train(x), knear.PCA(8).train(x)
    yield "assign", lambda progress: km.assign(x, progress=progress)
    yield "apply", lambda progress: pca.apply(x, progress=progress)
    yield "inverse", lambda progress: pca.inverse(x[:, :8], progress=progress)
    pq, sq = knear.ProductQuantizer(4, 4).train(x), knear.ScalarQuantizer().train(x)
    yield "PQ.encode", lambda progress: pq.encode(x, progress=progress)
    yield "SQ.encode", lambda progress: sq.encode(x, progress=progress)
    yield "select_k", lambda progress: knear.select_k(x, 2, progress=progress)
    vectors, lists = tmp_path / "x.npy", tmp_path / "ids.ivecs"
    matrix = np.stack([ids] * 16, axis=1)
    yield "write", lambda progress: knear.write_vectors(vectors, x, progress=progress)
    yield "write ids", lambda progress: knear.write_vectors(lists, matrix, progress=progress)
    yield (
        "read",
        lambda progress: knear.read_vectors(vectors, dtype=np.float64, progress=progress),
    )
    yield "read ids", lambda progress: knear.read_vectors(lists, progress=progress)
    flat = knear.Index("Flat", dim=16)
    flat.add(x)
    flat.write_faiss(tmp_path / "x.faiss")
    yield "load", lambda progress: knear.Index.load(tmp_path / "x.faiss", progress=progress)


def test_progress_is_told_and_stops_the_work(rng, tmp_path):
    x = rng.standard_normal((20000, 16)).astype(np.float32)
    heard = set()

    def stop(stage, share):
        raise ZeroDivisionError(stage)

    for name, call in calls_with_progress(x, tmp_path):
        told = []
        call(lambda stage, share, told=told: told.append((stage, share)))
        for stage, share in told:
            assert isinstance(stage, str) and 0 <= share <= 1, name
        if told:
            heard.add(name)
            with pytest.raises(ZeroDivisionError):
                call(stop)
    assert heard == {name for name, _ in calls_with_progress(x, tmp_path)}

    with pytest.raises(ZeroDivisionError):
        knear.knn(x, x, 10, progress=stop)
    index = knear.Index("Flat", dim=16)
    with pytest.raises(knear.InvalidArgument, match="progress must be True, or a function"):
        index.add(x, progress=7)
    assert len(index) == 0


def test_the_bar_of_progress(rng, capsys):
    pytest.importorskip("tqdm")
    x = rng.standard_normal((20000, 16)).astype(np.float32)
    knear.knn(x, x, 10, progress=True)
    drawn = capsys.readouterr().err
    assert re.search(r"\r\w[\w ]*: +\d+%\|", drawn), drawn
    assert ": :" not in drawn and "100%" in drawn


def test_an_index_is_not_changed_by_the_progress_of_its_change(rng):
    x = rng.standard_normal((20000, 16)).astype(np.float32)
    index = knear.Index("Flat", dim=16)
    index.add(x)
    for change in (
        lambda: index.add(x, progress=lambda *_: index.remove([0])),
        lambda: index.tune(5, progress=lambda *_: index.add(x[:1])),
    ):
        with pytest.raises(knear.InvalidArgument, match="progress callback of its own change"):
            change()
    assert len(index) == 20000
    index.add(x, progress=lambda *_: index.search(x[:1], 1))  # a search may
    knear.knn(x, x[:3000], 3, progress=lambda *_: index.add(x[:1]))
    assert len(index) > 40000


def test_progress_is_drawn_by_tqdm(rng, monkeypatch):
    x = rng.standard_normal((3000, 16)).astype(np.float32)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(knear.InvalidArgument, match="the package tqdm, but that is not installed"):
        knear.knn(x, x, 5, progress=True)
    bars = []

    class Bar:
        def __init__(self, total, **words):
            self.total, self.n, self.desc, self.open = total, 0, "", True
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.open = False

        def reset(self):
            self.n = 0

        def set_description(self, text, refresh):
            self.desc = f"{text}: "

        def refresh(self):
            assert self.open and 0 <= self.n <= self.total

    fake = types.ModuleType("tqdm.auto")
    fake.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm.auto", fake)
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    knear.knn(x, x, 5, progress=True)
    (bar,) = bars
    assert bar.n == bar.total == 100 and not bar.open and bar.desc
