"""knear.faiss: ParameterSpace, its criteria and operating points, with FAISS's numbers; and
demo_auto_tune, which is a loop over these."""

import numpy as np
import pytest
from faiss_pair import needs_faiss, ours, refused, theirs


def ranges_of(module, space):
    ranges = [space.parameter_ranges.at(i) for i in range(space.parameter_ranges.size())]
    return {each.name: module.vector_to_array(each.values).tolist() for each in ranges}


@needs_faiss
@pytest.mark.parametrize(
    "string",
    ["Flat", "PQ4np", "PQ6np", "IVF20,Flat", "IVF20,PQ4np", "IVF20,PQ4x4np,RFlat", "IVF20,SQ8",
     "PCA8,IVF20,PQ4np", "SQ8,Refine(SQfp16)", "IDMap,IVF20,Flat", "IVF20(IVF4,Flat),Flat"],
)  # fmt: skip
def test_ranges(string, capfd):
    spaces, shown = [], []
    for module in (ours, theirs):
        space = module.ParameterSpace()
        space.initialize(module.index_factory(12, string))
        spaces.append(space)
        space.display()
        shown.append(capfd.readouterr().out.replace(" \n", "\n"))
    a, b = (ranges_of(m, s) for m, s in zip((ours, theirs), spaces, strict=True))
    assert a == b and shown[0] == shown[1]
    count = spaces[0].n_combinations()
    assert count == spaces[1].n_combinations()
    for cno in {0, count // 3, count - 1}:
        assert spaces[0].combination_name(cno) == spaces[1].combination_name(cno)
        for other in {0, count // 2, count - 1}:
            pair = [space.combination_ge(cno, other) for space in spaces]
            assert pair[0] == pair[1]


@needs_faiss
def test_operating_points(tmp_path, capfd):
    """The optimal ones, whatever comes in which order, with ties."""
    luck = np.random.default_rng(3)
    for _ in range(30):
        pair = [module.OperatingPoints() for module in (ours, theirs)]
        for cno in range(25):
            perf, t = luck.integers(0, 6) / 5, luck.integers(0, 7) / 4
            assert pair[0].add(perf, t, f"p{cno}", cno) == pair[1].add(perf, t, f"p{cno}", cno)
            assert [p.optimal_pts.size() for p in pair] == [pair[0].optimal_pts.size()] * 2
        for points in ("all_pts", "optimal_pts"):
            a, b = ([(p.perf, p.t, p.key, p.cno) for p in map(getattr(o, points).at,
                     range(getattr(o, points).size()))] for o in pair)  # fmt: skip
            assert a == b
        for perf in (0, 0.3, 0.6, 1, 1.5):
            assert pair[0].t_for_perf(perf) == pair[1].t_for_perf(perf)
        merged = [module.OperatingPoints() for module in (ours, theirs)]
        for to in merged:
            to.add(0.5, 0.5, "first", 99)
        assert merged[0].merge_with(pair[0], "a ") == merged[1].merge_with(pair[1], "a ")
    written = []
    for points in merged:
        points.display()
        points.display(False)
        points.all_to_gnuplot(str(tmp_path / "all"))
        points.optimal_to_gnuplot(str(tmp_path / "optimal"))
        written.append([capfd.readouterr().out, (tmp_path / "all").read_text(),
                        (tmp_path / "optimal").read_text()])  # fmt: skip
    assert written[0] == written[1]


def test_criteria(rows, faiss):
    ids = np.arange(60).reshape(6, 10)
    found = ids.copy()
    found[0], found[1, :5], found[2] = found[0, ::-1], -1, 7
    distances = np.zeros((6, 10), np.float32)
    for kind, values in ((faiss.OneRecallAtRCriterion, {1: 3 / 6, 10: 4 / 6}),
                         (faiss.IntersectionCriterion, {1: 3 / 6, 10: 45 / 60})):  # fmt: skip
        for r, value in values.items():
            criterion = kind(6, r)
            with refused(match="ground truth not initialized"):
                criterion.evaluate(faiss.swig_ptr(distances), faiss.swig_ptr(found))
            criterion.set_groundtruth(None, ids)
            criterion.nnn = 10
            assert (criterion.nq, criterion.gt_nnn, criterion.R) == (6, 10, r)
            got = criterion.evaluate(faiss.swig_ptr(distances), faiss.swig_ptr(found))
            assert got == pytest.approx(value)


@pytest.mark.parametrize("experiments", [0, 12, 500])
def test_explore(rows, capfd, faiss, experiments):
    queries = rows[:200] + np.float32(0.05)
    truth = faiss.knn(queries, rows, 10)[1]
    index = faiss.index_factory(12, "IVF50,PQ6np,RFlat")
    faiss.extract_index_ivf(index).cp.min_points_per_centroid = 1
    index.train(rows)
    index.add(rows)
    criterion = faiss.IntersectionCriterion(200, 10)
    criterion.set_groundtruth(None, truth)
    criterion.nnn = 10
    space = faiss.ParameterSpace()
    space.initialize(index)
    if experiments == 0:  # the small space
        space = faiss.ParameterSpace()
        space.add_range("nprobe").values.push_back(2.0)
        space.add_range("nprobe").values.push_back(40.0)
    space.n_experiments = experiments
    points = space.explore(index, queries, criterion)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == min(experiments or 500, space.n_combinations())
    assert all("nprobe=" in line for line in lines)
    best = points.optimal_pts.at(points.optimal_pts.size() - 1)
    everything = [points.all_pts.at(i) for i in range(points.all_pts.size())]
    assert best.perf == max(p.perf for p in everything) > (0.5 if experiments == 0 else 0.98)
    assert best.key == space.combination_name(best.cno)
    space.verbose = 0
    space.set_index_parameters(index, best.cno)
    distances, ids = index.search(queries, 10)
    again = criterion.evaluate(faiss.swig_ptr(distances), faiss.swig_ptr(ids))
    assert again == pytest.approx(best.perf)
    capfd.readouterr()
    space.batchsize, space.min_test_duration, space.thread_over_batches = 64, 0.001, True
    assert space.explore(index, queries, criterion).t_for_perf(best.perf) < 1e50
    assert capfd.readouterr().out == ""
    with pytest.raises(AssertionError):
        space.explore(index, queries[:5], criterion)


def test_demo_auto_tune(rows, capsys):
    """FAISS's demo, with other factory strings: what is best of several indexes."""
    faiss = ours
    queries = rows[:100] + np.float32(0.05)
    truth = faiss.knn(queries, rows, 10)[1]
    crit = faiss.OneRecallAtRCriterion(queries.shape[0], 1)
    crit.set_groundtruth(None, truth.astype("int64"))
    crit.nnn = truth.shape[1]
    op, op_per_key = faiss.OperatingPoints(), []
    for key in ("IVF50,Flat", "PCA8,IVF50,SQ8", "Flat"):
        index = faiss.index_factory(12, key)
        params = faiss.ParameterSpace()
        params.initialize(index)
        index.train(rows)
        index.add(rows)
        opi = params.explore(index, queries, crit)
        opi.display()
        op.merge_with(opi, key + " ")
        op_per_key.append((key, opi))
        ops = opi.optimal_pts
        assert [ops.at(i // 2).perf for i in range(ops.size() * 2 - 1)]
    op.display()
    assert "Pareto-optimal" in capsys.readouterr().out
    assert op.optimal_pts.at(op.optimal_pts.size() - 1).perf == 1


def test_parameters_by_name(rows, faiss):
    index = faiss.index_factory(12, "IVF20,Flat")
    space = faiss.ParameterSpace()
    space.set_index_parameters(index, "nprobe=7, max_codes=100")
    assert (index.nprobe, index.max_codes) == (7, 100)
    space.set_index_parameter(index, "max_codes", float("inf"))
    assert index.max_codes == 0
    refined = faiss.IndexRefineFlat(index)
    space.set_index_parameters(refined, "k_factor_rf=3.7")
    assert refined.k_factor == 3
    for wrong in ("nprobe", "nprobe=x", "foo=3"):
        with refused():
            space.set_index_parameters(index, wrong)
