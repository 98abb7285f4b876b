"""Comparisons of two programs see a loss, see none where there is none, and say if unsure."""

import gzip
import json
import os
import struct
import sys
import textwrap

import numpy as np
import pytest
from test_bench import BENCH, run

sys.path.insert(0, str(BENCH))
from support import disassembly, race


def test_the_interval_is_that_of_the_sign_test():
    # For 15 pairs tables of the sign test give the 4th and the 12th; below 6 there is none.
    assert [race.order_of_interval(n) for n in (5, 6, 9, 15, 25)] == [0, 1, 2, 4, 8]
    ratios = [1.01, 0.97, 1.2, 0.99, 1.0, 1.02, 0.9, 1.05, 0.95]
    outcome = race.judge([(2 * ratio, 2.0) for ratio in ratios])
    assert (outcome.ratio, outcome.low, outcome.high) == (1.0, 0.95, 1.05)
    with pytest.raises(ValueError, match="5 pairs"):
        race.judge([(1.0, 1.0)] * 5)


def test_the_interval_holds_the_true_ratio_as_often_as_it_says():
    random = np.random.default_rng(11)
    held, trials = 0, 2000
    for noise in random.lognormal(0, 0.3, (trials, 15)):
        outcome = race.judge([(1.1 * factor, 1.0) for factor in noise])
        held += outcome.low <= 1.1 <= outcome.high
    # 96.5 % for 15 pairs; 2,000 trials have a standard deviation of 0.4 %.
    assert 0.945 < held / trials < 0.985


def test_verdicts():
    def verdict(ratios):
        return race.judge([(ratio, 1.0) for ratio in ratios]).verdict

    assert verdict([1.05 + 0.001 * i for i in range(9)]) == "LOST"
    assert verdict([0.99 + 0.004 * i for i in range(9)]) == "kept"
    assert verdict([0.9 + 0.05 * i for i in range(9)]) == "unclear"


def fake_program(path, seconds: float, answer: int = 0):
    """Takes the arguments that the race gives, and says that it took about `seconds`."""
    path.parent.mkdir(parents=True)
    path.write_text(
        textwrap.dedent(f"""\
            #!{sys.executable}
            import json, os, sys, time
            words = sys.argv[1:]
            for option in ("--out", "--distances"):
                if option in words:
                    open(words[words.index(option) + 1], "wb").write(bytes([{answer}]))
            seconds = {seconds} * (1 + 0.005 * (time.time_ns() // 1000 % 1000 / 1000))
            names = ("seconds", "search_seconds", "later_query_seconds", "add_seconds")
            passes = [dict(asked="auto", seconds=1.0), dict(asked="prefix", seconds=seconds)]
            figures = dict(dict.fromkeys(names, seconds), prepare_seconds=0.0, passes=passes)
            print(json.dumps(figures))
            """)
    )
    path.chmod(0o755)
    return str(path)


def races(tmp_path, ours, other, *options):
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, count in (("train", 300), ("t10k", 70)):
        pixels = np.random.default_rng(count).integers(0, 256, count * 4, np.uint8).tobytes()
        content = struct.pack(">4i", 2051, count, 2, 2) + pixels
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    out = tmp_path / "out.json"
    words = ("--against", other, "--program", ours, "--pairs", "7", "--json", str(out))
    rows = ("--rows", "Fashion-MNIST, k = 10", "join")
    done = run("limits", *words, *rows, *options, cache=tmp_path, data=tmp_path / "data")
    assert "among itself" in done.stdout and "no self-join" in done.stdout
    return done, json.loads(out.read_text())


def test_a_program_against_itself_has_lost_nothing(tmp_path):
    program = fake_program(tmp_path / "a" / "bin" / "knear", 0.1)
    done, everything = races(tmp_path, str(tmp_path / "a"), program)
    assert done.returncode == 0, done.stderr
    assert "lost more than 3 %: none" in done.stdout
    figure = everything["rows"][0]["figures"]["search"]
    assert len(figure["pairs"]) == 7
    assert figure["low"] <= figure["ratio"] <= figure["high"]
    assert figure["ratio"] == pytest.approx(1, abs=0.006)
    assert "preparing" not in everything["rows"][0]["figures"]  # it took no time


def test_a_slower_program_and_another_answer_are_seen(tmp_path):
    ours = fake_program(tmp_path / "a" / "bin" / "knear", 0.105)
    other = fake_program(tmp_path / "b" / "bin" / "knear", 0.1, answer=1)
    done, everything = races(tmp_path, ours, other)
    assert done.returncode == 1, done.stderr
    assert "lost more than 3 %: Fashion-MNIST, k = 10: search" in done.stdout
    assert "other answers: Fashion-MNIST, k = 10" in done.stdout
    assert everything["rows"][0]["figures"]["search"]["verdict"] == "LOST"


def test_one_query_at_a_time_is_raced_in_three_ways(tmp_path):
    program = fake_program(tmp_path / "a" / "bin" / "knear", 0.1)
    made = run("data", "unit96", "--rows", "200", "--queries", "20", cache=tmp_path)
    assert made.returncode == 0, made.stderr
    small, usual = (tmp_path / "bench" / f"unit96-{n}-s1" for n in ("200x20", "1000000x10000"))
    small.rename(usual)  # the small set by the name of the large one
    about = (usual / "about.json").read_text().replace(str(small), str(usual))
    (usual / "about.json").write_text(about)
    out = tmp_path / "out.json"
    words = ("--against", program, "--program", program, "--pairs", "6", "--json", str(out))
    done = run("limits", *words, "--rows", "1M x 96, one at a time", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert list(row["figures"]) == ["one query a call", "by a prefix", "adding"]
    assert row["figures"]["by a prefix"]["seconds"][0] == pytest.approx(0.1, rel=0.01)


def test_what_a_race_cannot_do_is_refused(tmp_path):
    for words, message in (
        (("--against", str(tmp_path)), "no program"),
        (("--against", "x", "--pairs", "5"), "--pairs must be at least 6, but is 5"),
        (("--rows", "nothing"), "no row 'nothing'"),
        (("--program", "x"), "--program is for --against"),
    ):
        done = run("limits", *words, cache=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr


LISTING = """
0000000000{0}100 <{1}>:
  {0}100:\tvpdpbusd (%rdi),%zmm0,%zmm1
  {0}106:\tadd    0x{2}(%rip),%rax        # 5000 <table>
  {0}10d:\tcmp    $0x{3},%eax
  {0}110:\tjne    {0}100 <{1}>
  {0}112:\tcall   {0}200 <callee>
  {0}117:\tret
  {0}118:\tnopl   0x0(%rax,%rax,1)

0000000000{0}200 <plain>:
  {0}200:\tret
"""


def test_code_is_compared_without_names_and_addresses():
    ours, moved, other = (
        disassembly.functions(LISTING.format(*words))
        for words in (("1", "a", "4eea", "8"), ("2", "b", "3eea", "8"), ("1", "a", "4eea", "9"))
    )
    assert [name for name, _ in ours] == ["a", "plain"]
    assert ours[0][1][-3:] == ["jne    +0x0", "call   outside", "ret"]
    assert disassembly.differing(ours, moved) == []
    assert disassembly.differing(ours, other) == ["a"]
    assert disassembly.differing([*ours, ours[0]], ours) == ["a"]  # once there, twice here


def test_innermost_loops_are_compared_by_opcode():
    def loops(*words):
        return disassembly.inner_loops(LISTING.format(*words), "vpdp")

    ours = loops("1", "a", "4eea", "8")
    assert list(ours.elements()) == [("add", "cmp", "jne", "vpdpbusd")]
    assert ours == loops("2", "b", "3eea", "9")
    other = LISTING.format("1", "a", "1", "8").replace("add ", "sub ")
    assert ours != disassembly.inner_loops(other, "vpdp")
    assert not disassembly.inner_loops(LISTING.format("1", "a", "1", "8"), "vpmull")


def test_more_instructions_are_seen(tmp_path):
    """With a valgrind that counts what the program's size says."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "valgrind").write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "assert os.environ['KNEAR_ISA'] == 'avx2' and sys.argv[4] == 'search'\n"
        "print('==1== Collected :', os.path.getsize(sys.argv[3]), file=sys.stderr)\n"
    )
    (tools / "objdump").write_text(
        "#!/bin/sh\ncat <<'X'" + LISTING.format("1", "a", "1", "8") + "X\n"
    )
    for name, size in (("valgrind", 0), ("objdump", 0), ("ours", 1030), ("other", 1000)):
        if size:
            (tools / name).write_bytes(bytes(size))
        (tools / name).chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    words = ("instructions", "--rows", "500", "--program", str(tools / "ours"), "--against")
    more = run(*words, str(tools / "other"), cache=tmp_path, PATH=path)
    assert more.returncode == 1, more.stderr
    assert more.stdout.count("1.0300  MORE") == 4
    assert "VNNI kernels: identical, 1 functions" in more.stdout
    same = run(*words, str(tools / "ours"), cache=tmp_path, PATH=path)
    assert same.returncode == 0, same.stderr
    assert "went up by more than 2 %: none" in same.stdout
