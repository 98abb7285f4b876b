"""scripts/machine_code: what it reads of a disassembly, and that it fails where code gets worse."""

import copy
import json
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCAN = "void knear::cuda::run_kernel<knear::detail::ScanPanels<knear::CudaThread, {}, false> >(x)"
RESOURCES = f"""
arch = sm_90a
 Function {SCAN.format("true")}:
  REG:80 STACK:8 SHARED:1024 LOCAL:0
 Function {SCAN.format("false")}:
  REG:128 STACK:0 SHARED:1024 LOCAL:0
"""
# A loop of two products in a loop over tiles, in which a register comes back from memory.
CODE = f"""
arch = sm_90a
		Function : {SCAN.format("true")}
        /*0000*/                   STL [R1], R0 ;                           /* 0x0000000001007387 */
        /*0010*/                   LDL R12, [R1] ;
        /*0020*/                   LDS.128 R4, [R8] ;
        /*0030*/                   IMMA.16832.U8.S8 R28, R12.ROW, R46.COL, R28 ;
        /*0040*/                   IMMA.16832.U8.S8 R32, R12.ROW, R48.COL, R32 ;
        /*0050*/              @!P2 BRA 0x0020 ;
        /*0060*/               @P0 BRA 0x0010 ;
        /*0070*/                   EXIT ;
		Function : {SCAN.format("false")}
        /*0000*/                   LDS R4, [R8] ;
        /*0010*/               @P0 BRA 0x0030 ;
        /*0020*/                   NOP ;
        /*0030*/                   EXIT ;
"""


@pytest.fixture
def tool(monkeypatch, tmp_path):
    loader = SourceFileLoader("machine_code", str(ROOT / "scripts" / "machine_code"))
    module = module_from_spec(spec_from_loader("machine_code", loader))
    monkeypatch.setitem(sys.modules, "machine_code", module)  # dataclasses look there
    loader.exec_module(module)
    monkeypatch.setattr(
        module, "output", lambda _, what, library: RESOURCES if what == "-res-usage" else CODE
    )
    return module


def test_kernels_and_loops_are_read(tool):
    kernels = tool.read(Path("some.a"), "cuobjdump")
    few = kernels["sm_90a", "ScanPanels<true, false>"].json()
    assert few == {
        "registers": 80,
        "stack": 8,
        "instructions": 8,
        "local_accesses": 2,
        "loop": {  # the inner one
            "instructions": 4,
            "products": 2,
            "wide_loads": 1,
            "local_accesses": 0,
            "instructions_per_product": 2.0,
            "tile_instructions": 0,  # none begins in a loop around it
            "slices_in_a_row": 1,
        },
    }
    assert "loop" not in kernels["sm_90a", "ScanPanels<false, false>"].json()  # no branch goes back


def kernel_of(tool, text):
    kernel = tool.Kernel("some", "sm_90a")
    for line in text.splitlines():
        if match := tool.LINE.match(line):
            kernel.instructions.append(tool.instruction(match))
    return kernel


def test_the_way_on_which_no_row_passes_is_counted(tool):
    text = """
        /*0000*/                   LDGSTS.E.BYPASS.128 [R81], [R76.64] ;
        /*0010*/                   LDGSTS.E.BYPASS.128 [R82], [R78.64] ;
        /*0020*/                   IMMA.16832.U8.S8 R28, R12.ROW, R46.COL, R20 ;
        /*0030*/               @P5 BRA 0x00b0 ;
        /*0040*/               @P0 BRA 0x0070 ;
        /*0050*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0060*/                   LDGSTS.E.BYPASS.128 [R81], [R76.64] ;
        /*0070*/                   LDGSTS.E.BYPASS.128 [R82], [R78.64] ;
        /*0080*/                   LDS.128 R12, [R116] ;
        /*0090*/                   IMMA.16832.U8.S8 R28, R12.ROW, R46.COL, R28 ;
        /*00a0*/              @!P2 BRA 0x0040 ;
        /*00b0*/               @P1 BRA 0x00e0 ;
        /*00c0*/                   ATOMG.E.ADD R4, [R4.64], R7 ;
        /*00d0*/                   BRA 0x00e0 ;
        /*00e0*/                   NOP ;
        /*00f0*/                   FMUL R4, R5, R6 ;
        /*0100*/                   F2I.TRUNC.NTZ R5, R4 ;
        /*0110*/                   STS [R4], R5 ;
        /*0120*/               @P4 BRA 0x0000 ;
        /*0130*/                   EXIT ;
    """
    kernel = kernel_of(tool, text)
    assert len(kernel.instructions) == 20
    loop = kernel.json()["loop"]
    # The loop of products without the record of the next tile.
    assert loop["instructions"] == 5
    assert (loop["products"], loop["wide_loads"]) == (1, 1)
    # Around it: the first slice with both copies, limits, but nothing of rows that pass.
    assert loop["tile_instructions"] == 10
    assert loop["slices_in_a_row"] == 1


def test_slices_in_a_row_are_told_apart(tool):
    # One slice where P0, else two; each slice is a load and a product, and two have a move more.
    text = """
        /*0000*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0010*/               @P0 BRA 0x0090 ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R81], [R76.64] ;
        /*0030*/                   LDS.128 R12, [R116] ;
        /*0040*/                   IMMA.16832.U8.S8 R28, R12.ROW, R46.COL, R28 ;
        /*0050*/                   MOV R1, R2 ;
        /*0060*/                   LDS.128 R12, [R116] ;
        /*0070*/                   IMMA.16832.U8.S8 R28, R12.ROW, R46.COL, R28 ;
        /*0080*/                   BRA 0x00d0 ;
        /*0090*/               @P1 BRA 0x00b0 ;
        /*00a0*/                   LDGSTS.E.BYPASS.128 [R81], [R76.64] ;
        /*00b0*/                   LDS.128 R12, [R116] ;
        /*00c0*/                   IMMA.16832.U8.S8 R28, R12.ROW, R46.COL, R28 ;
        /*00d0*/               @P5 BRA 0x0100 ;
        /*00e0*/                   ATOMS.ADD R4, [R4], R7 ;
        /*00f0*/                   STS [R4], R5 ;
        /*0100*/               @P4 BRA 0x0000 ;
        /*0110*/                   EXIT ;
    """
    kernel = kernel_of(tool, text)
    loop = kernel.json()["loop"]
    # Both copies count, appending does not: 8 for one slice, 11 for two but for their jump.
    assert loop["tile_instructions"] == 8
    assert loop["slices_in_a_row"] == 2
    assert loop["instructions"] == 11 - 8
    assert (loop["products"], loop["wide_loads"]) == (1, 1)


# A loop over tiles with two products; one way around it appends, another waits for a barrier that
# is not there yet.
WARPGROUPS = """
        /*0000*/                   UBLKCP [UR4], [UR6], UR8 ;
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R11+URZ], R8 ;
        /*0020*/              @!P0 BRA 0x00d0 ;
        /*0030*/                   LDS.128 R156, [R0] ;
        /*0040*/                   IGMMA.64x128x32.U8.S8 R88, R156, gdesc[UR4], RZ, !UPT ;
        /*0050*/                   IGMMA.64x128x32.U8.S8 R24, R156, gdesc[UR4], RZ, !UPT, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/                   VIADDMNMX R191, R91, R196, R89, !PT ;
        /*0080*/              @!P1 BRA 0x00b0 ;
        /*0090*/                   ATOMS.ADD R13, [R4], R171 ;
        /*00a0*/                   STS [R4], R5 ;
        /*00b0*/               @P4 BRA 0x0010 ;
        /*00c0*/                   EXIT ;
        /*00d0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R11+URZ], R8 ;
        /*00e0*/              @!P0 BRA 0x00d0 ;
        /*00f0*/                   BRA 0x0030 ;
"""


def test_the_scan_by_warpgroups(tool):
    found = kernel_of(tool, WARPGROUPS).json()
    assert found["warpgroups"] == {
        "products": 2,
        "bulk_copies": 1,
        "tile_instructions": 9,
        "wide_loads": 1,
        "waits": 1,
        "local_accesses": 0,
    }
    assert "loop" not in found
    for what in found["warpgroups"]:
        now = copy.deepcopy(found)
        now["warpgroups"][what] += 1
        [line] = tool.worse("a", now, found)
        assert f"warpgroups.{what} is" in line
    del now["warpgroups"]
    assert tool.worse("a", now, found) == ["a: it has no product of a warpgroup"]


@pytest.mark.parametrize(
    "path, value, says",
    [
        (["local_accesses"], 3, "local_accesses is 3, 2 at most"),
        (["stack"], 16, "stack is 16, 8 at most"),
        (["registers"], 81, "registers is 81, 80 at most"),
        (["loop", "local_accesses"], 1, "loop.local_accesses is 1, 0 at most"),
        (["loop", "instructions_per_product"], 2.11, "is 2.11, 2.1 at most"),
        (["loop", "tile_instructions"], 3, "loop.tile_instructions is 3, 0 at most"),
        (["loop", "wide_loads"], 0, "loop.wide_loads are 0 for 2 products"),
    ],
)
def test_worse_code_is_told(tool, path, value, says):
    kept = tool.read(Path("some.a"), "cuobjdump")["sm_90a", "ScanPanels<true, false>"].json()
    assert tool.worse("a", kept, kept) == []
    now = copy.deepcopy(kept)
    *folders, last = path
    place = now
    for folder in folders:
        place = place[folder]
    place[last] = value
    [line] = tool.worse("a", now, kept)
    assert says in line
    assert tool.worse("a", kept, now) == []  # better is no failure


def test_growth_within_5_percent_is_none(tool):
    kept = tool.read(Path("some.a"), "cuobjdump")["sm_90a", "ScanPanels<true, false>"].json()
    now = copy.deepcopy(kept)
    now["loop"]["instructions_per_product"] = 2.1
    assert tool.worse("a", now, kept) == []
    del now["loop"]
    assert tool.worse("a", now, kept) == ["a: no loop has a product"]


def test_what_is_kept_has_no_spills_in_the_scan():
    kept = json.loads((ROOT / "tests" / "cuda" / "machine_code.json").read_text())
    scans = [
        (name, kernel)
        for each in kept["kernels"].values()
        for name, kernel in each.items()
        if re.match("ScanPanels|ScanFew|SearchFew", name)
    ]
    # Eight forms for many queries, four for pairs of a self-join, eight each for 32 and for 8, two
    # each in one launch, for sm_80 and sm_90a.
    assert len(scans) == 64
    for name, kernel in scans:
        # Pairs of floats with more than 128 columns keep two words of sums that pass.
        paired = name == "ScanPanels<false, false, false, false, true>"
        assert kernel["local_accesses"] <= 4 * paired and kernel["stack"] <= 8 * paired
        assert kernel["loop"]["local_accesses"] == 0
        assert kernel["loop"]["wide_loads"] > 0
        most = 27 if re.match("(Scan|Search)Few<8,", name) else 13
        assert kernel["loop"]["instructions_per_product"] < most
    # 128 columns: four slices, 64 scores per thread.
    for each in kept["kernels"].values():
        for whole in ("false", "true"):
            loop = each[f"ScanPanels<true, {whole}, false, false, false>"]["loop"]
            assert loop["slices_in_a_row"] == 4
            assert loop["tile_instructions"] + 3 * loop["instructions"] <= 6 * 64
            # Pairs of a self-join: 64 scores for both rows, less than twice the above.
            pair = each[f"ScanPanels<true, {whole}, false, false, true>"]["loop"]
            assert pair["slices_in_a_row"] == 4
            assert pair["wide_loads"] == loop["wide_loads"]
            once = pair["tile_instructions"] + 3 * pair["instructions"]
            twice = 2 * (loop["tile_instructions"] + 3 * loop["instructions"])
            assert once < 0.9 * twice


def test_what_is_kept_of_the_scan_by_warpgroups():
    kept = json.loads((ROOT / "tests" / "cuda" / "machine_code.json").read_text())["kernels"]
    for whole in ("false", "true"):
        for slices in range(5):  # of a row; 0: more
            name = f"ScanByWarpgroups<{whole}, {slices}>"
            kernel = kept["sm_90a"][name]
            assert kernel["local_accesses"] == kernel["stack"] == 0
            scan = kernel["warpgroups"]
            assert scan["products"] == 2 * slices if slices else 16
            assert scan["waits"] == 2 or slices == 0
            assert scan["bulk_copies"] == 3
            # 128 scores: one operation each, loads of limits and codes, and what is around them.
            assert 128 < scan["tile_instructions"] <= 2.2 * 128 or slices == 0
            assert "warpgroups" not in kept["sm_80"][name]  # which has no such products


def test_without_tools_or_device_code(tool, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["machine_code", "--build", str(tmp_path)])
    monkeypatch.setattr(tool, "tool", lambda name: None)
    assert tool.main() == 0
    assert "skipped: there is no cuobjdump" in capsys.readouterr().out
    monkeypatch.setattr(tool, "tool", lambda name: name)
    with pytest.raises(SystemExit, match="has no device code"):
        tool.main()


def test_new_worse_and_another_compiler(tool, monkeypatch, tmp_path, capsys):
    library = tmp_path / "knear" / "scan" / "libknear_scan_cuda.a"
    library.parent.mkdir(parents=True)
    library.touch()
    kept = tmp_path / "kept.json"
    monkeypatch.setattr(tool, "KEPT", kept)
    monkeypatch.setattr(tool, "tool", lambda name: name)
    monkeypatch.setattr(tool, "compiler", lambda: "13.0")
    monkeypatch.setattr(sys, "argv", ["machine_code", "--build", str(tmp_path), "--write"])
    assert tool.main() == 0
    monkeypatch.setattr(sys, "argv", ["machine_code", "--build", str(tmp_path)])
    assert tool.main() == 0
    assert "2 kernels, 0 worse" in capsys.readouterr().out
    numbers = json.loads(kept.read_text())
    numbers["kernels"]["sm_90a"]["ScanPanels<true, false>"]["local_accesses"] = 0
    del numbers["kernels"]["sm_90a"]["ScanPanels<false, false>"]
    kept.write_text(json.dumps(numbers))
    assert tool.main() == 1
    said = capsys.readouterr().err
    assert "ScanPanels<true, false>: local_accesses is 2, 0 at most was kept" in said
    assert "ScanPanels<false, false>: is new" in said
    monkeypatch.setattr(sys, "argv", ["machine_code", "--build", str(tmp_path), "--loops", "Scan"])
    assert tool.main() == 0
    # Two loops of one kernel, the inner one first.
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("sm_90a ScanPanels<true, false> 00020-00050 4 ")
    assert second.startswith("sm_90a ScanPanels<true, false> 00010-00060 6 ")
    monkeypatch.setattr(sys, "argv", ["machine_code", "--build", str(tmp_path), "--loops", "None"])
    with pytest.raises(SystemExit, match="no kernel's name holds 'None'"):
        tool.main()
    monkeypatch.setattr(sys, "argv", ["machine_code", "--build", str(tmp_path)])
    monkeypatch.setattr(tool, "compiler", lambda: "13.1")
    assert tool.main() == 0
    assert "not compared: kept of nvcc 13.0, this is 13.1" in capsys.readouterr().out
