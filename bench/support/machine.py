"""Which machine and which versions a figure was taken on, and the machine's peaks."""

import datetime
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

from . import environment


def describe() -> dict:
    """Processor, cores, memory, kernel, date and commit; no name of the machine."""
    cpu = {}
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        cpu[name.strip()] = value.strip()
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    git = ["git", "-C", str(environment.ROOT)]
    commit = changed = None
    if (environment.ROOT / ".git").exists():  # and not that of a repository around an installation
        commit = _output([*git, "rev-parse", "--short", "HEAD"])
        changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return {
        "processor": cpu.get("model name", platform.processor()),
        "family, model, stepping": [
            cpu.get(field) for field in ("cpu family", "model", "stepping")
        ],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": kib * 1024,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": (commit or "unknown") + (" with changes" if changed else ""),
        "load": os.getloadavg()[0],
    }


def newer_sources(built: str) -> list[str]:
    """Sources of the Python package that were changed after the file `built`."""
    when = Path(built).stat().st_mtime
    root = environment.ROOT
    found = [*(root / "knear").rglob("*.*"), *(root / "python").glob("*.*")]
    return [str(path.relative_to(root)) for path in found if path.stat().st_mtime > when]


def program(given: str | None) -> str | None:
    """The built command line `knear`: the one given, that of the release preset, or on the path."""
    if given:
        return given
    built = environment.ROOT / "build" / "release" / "bin" / "knear"
    return str(built) if built.exists() else shutil.which("knear")


def peaks(knear: str | None, threads: int) -> dict | None:
    """What `knear roofline --json` says, or None without the program."""
    if knear is None:
        return None
    text = _output([knear, "roofline", "--json", "--threads", str(threads)])
    return json.loads(text) if text else None


def last_cache_bytes() -> int | None:
    """All last-level caches of the processors that this process may use; None where unknown."""
    caches = {}  # by level and the processors that share it
    for cpu in os.sched_getaffinity(0):
        folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/cache")
        for index in folder.glob("index*"):
            try:
                level, sharers, size = (
                    (index / name).read_text().strip()
                    for name in ("level", "shared_cpu_list", "size")
                )
                if (index / "type").read_text().strip() != "Instruction":
                    caches[int(level), sharers] = int(size.removesuffix("K")) * 1024
            except (OSError, ValueError):
                continue
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
