"""Fails if compiling knear takes more processor time than it did when the kept number was measured.

    python3 tests/compile_time/compile_time.py [--keep] [FOLDER]

FOLDER is a configured build (build/release). One source in twelve, chosen by a checksum of its
name, is compiled without ccache, with the flags of the build and one compiler on each core. The
time is counted in compilations of reference.cpp (beside this file), by as many compilers at once,
before, in the middle and after: then neither the machine nor what else runs on it changes the
result much. Another kind of processor does: what was 16.1 on a Zen 5 is about 18.5 on a Zen 4,
where the kept number is from. More than 15 % above the number in kept.json, three times in a row,
is a failure; --keep replaces the number.
"""

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEPT = HERE / "kept.json"
TOLERANCE = 1.15
SHARE = 12


def sample(folder: Path) -> list[tuple[str, list[str], str]]:
    """Name, command and directory of each source of the sample."""
    out = []
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        name = str(file.relative_to(folder if file.is_relative_to(folder) else ROOT))
        words = shlex.split(entry["command"])
        # The compiler stands behind what launches it.
        first = next(
            i
            for i, word in enumerate(words)
            if re.fullmatch(r".*(c\+\+|g\+\+|clang\+\+)[-0-9.]*", word)
        )
        if zlib.crc32(name.encode()) % SHARE == 0 and file.suffix == ".cpp":
            out.append((name, words[first:], entry["directory"]))
    return sorted(out)


def compile_all(commands: list[tuple[list[str], str]]) -> float:
    """Compiles, one source for each core at a time; returns seconds of processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    def run(job: tuple[list[str], str]) -> None:
        command, directory = job
        with tempfile.TemporaryDirectory() as made:
            words = list(command)
            words[words.index("-o") + 1] = f"{made}/object.o"
            if "-MF" in words:
                words[words.index("-MF") + 1] = f"{made}/object.d"
            subprocess.run(words, cwd=directory, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--keep", action="store_true", help="replace the kept number")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if not (folder / "compile_commands.json").exists():
        parser.error(f"FOLDER is {options.folder}, which has no compile_commands.json")

    chosen = sample(folder)
    compiler = chosen[0][1][0]
    cores = os.cpu_count() or 1
    unit = [
        ([compiler, "-std=gnu++20", "-O2", "-c", str(HERE / "reference.cpp"), "-o", "x"], str(HERE))
    ]

    def reference() -> float:
        return compile_all(unit * cores) / cores

    def measured() -> float:
        half = len(chosen) // 2
        references = [reference()]
        seconds = compile_all([(c, d) for _, c, d in chosen[:half]])
        references.append(reference())
        seconds += compile_all([(c, d) for _, c, d in chosen[half:]])
        references.append(reference())
        ratio = seconds / sorted(references)[1]
        print(
            f"compiling {len(chosen)} sources took {seconds:.0f} s of processor, {ratio:.1f} times "
            f"reference.cpp ({', '.join(f'{r:.1f}' for r in references)} s)",
            flush=True,
        )
        return ratio

    ratio = measured()
    if options.keep:
        KEPT.write_text(json.dumps({"sources": len(chosen), "references": round(ratio, 1)}) + "\n")
        return 0
    kept = json.loads(KEPT.read_text())["references"]
    for _ in range(2):
        if ratio > TOLERANCE * kept:
            ratio = min(ratio, measured())
    if ratio > TOLERANCE * kept:
        print(
            f"compiling takes {ratio:.1f} times reference.cpp, but the kept number is {kept}: "
            "find the header or source that became heavy (g++ -ftime-report, clang++ "
            "-ftime-trace), or keep the new number (--keep) and say why in the commit",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
