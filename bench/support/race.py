"""Two programs `knear` on the same work, in turns: the ratio of their times, and how sure it is.

    programs = race.program_of("build/release"), race.program_of("/other/clone/build/release")
    pairs = race.run(programs, work, 15)         # work: program, whether it warms up -> seconds
    race.judge(pairs)                            # Outcome(ratio=1.01, low=0.99, high=1.02, ...)

Each pair is one run of either program, and they take turns at being first, so what changes slowly
on the machine meets both. The ratio is the median of the ratios of the pairs. Its interval is that
of the sign test: from the r-th of the ratios in order to the r-th from the end, with the largest r
for which such an interval misses the true median with a probability of at most 5 %. It assumes
nothing about how times are distributed, only that the pairs are independent of each other.
"""

import dataclasses
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path

LOSS = 1.03  # a ratio beyond this is a loss
LEVEL = 0.95
LEAST_PAIRS = 6  # with fewer not even the whole range of the ratios is an interval of that level


def program_of(build: str) -> Path:
    """The program `knear` that a build directory holds, or that `build` is; else ValueError."""
    path = Path(build).resolve()
    if path.is_dir():
        path = path / "bin" / "knear"
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError(f"no program {path} to run")
    return path


def order_of_interval(count: int) -> int:
    """r of the interval of `count` ratios; 0 where there is none of the level."""
    missed, r = 0.0, 0
    while r < count // 2:
        missed += 2 * math.comb(count, r) / 2**count
        if missed > 1 - LEVEL:
            break
        r += 1
    return r


@dataclasses.dataclass(frozen=True)
class Outcome:
    """seconds: medians of either program; ratio: of the pairs, the first program's over the
    second's, with its interval."""

    seconds: tuple[float, float]
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > LOSS:
            return "LOST"
        return "unclear" if self.high > LOSS else "kept"


def judge(pairs: list[tuple[float, float]]) -> Outcome:
    ratios = sorted(first / second for first, second in pairs)
    r = order_of_interval(len(ratios))
    if r == 0:
        raise ValueError(f"{len(ratios)} pairs, but an interval takes {LEAST_PAIRS}")
    medians = tuple(statistics.median(times) for times in zip(*pairs, strict=True))
    return Outcome(medians, statistics.median(ratios), ratios[r - 1], ratios[-r])


def run(
    programs: tuple[Path, Path], work: Callable[[Path, bool], dict[str, float]], pairs: int
) -> dict[str, list[tuple[float, float]]]:
    """The seconds of each figure that `work` gives, by pair, after a run of each that warms up."""
    for program in programs:
        work(program, True)
    out: dict[str, list[tuple[float, float]]] = {}
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        times = {place: work(programs[place], False) for place in order}
        for figure in times[0]:
            out.setdefault(figure, []).append((times[0][figure], times[1][figure]))
    return out
