"""Finds the Python that has what a bench program needs, and the folders that all of them use.

The bench programs are started as `bench/data` and `bench/peers`, by whatever `python3` is first
on the path. The packages they need are in the project's virtual environment (scripts/setup makes
it), so the first thing that each program does is to continue there. This file uses the standard
library only: it runs before that environment does.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLS = {"yaml": "pyyaml", "faiss": "faiss-cpu"}  # packages that are imported by another name


def ensure_packages(*names: str, setup: str = "scripts/setup --bench") -> None:
    """Returns if all of `names` can be imported; else continues in .venv; else says what to do.

    `setup` is the command that installs them in a clone.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and os.environ.get("KNEAR_BENCH_VENV") != "1":
        os.environ["KNEAR_BENCH_VENV"] = "1"
        os.execv(python, [str(python), *sys.argv])
    if not (ROOT / "scripts" / "setup").exists():  # installed, without the source tree
        wanted = " ".join(INSTALLS.get(name, name) for name in missing if name != "knear")
        remedies = [f"'{sys.executable} -m pip install {wanted}' installs them"] if wanted else []
        if "knear" in missing:  # which no index of packages has
            remedies.append(f"'{sys.executable} -m pip install .' in a clone of knear builds it")
        remedy = ", ".join(remedies)
    elif missing == ["knear"]:
        remedy = f"'{sys.executable} -m pip install --no-build-isolation {ROOT}' builds it"
    else:
        remedy = f"{setup} installs what is needed"
    name = Path(sys.argv[0]).name
    sys.exit(f"{name}: no Python package {', '.join(missing)} in {sys.executable}; {remedy}")


def cache_folder() -> Path:
    """$KNEAR_CACHE, else $XDG_CACHE_HOME/knear, else ~/.cache/knear; not made here."""
    if cache := os.environ.get("KNEAR_CACHE"):
        return Path(cache)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "knear"
    return Path.home() / ".cache" / "knear"


def data_folder() -> Path | None:
    """The folder of real vectors: $KNEAR_DATA, else ../shared/data; None where neither exists."""
    if data := os.environ.get("KNEAR_DATA"):
        return Path(data)
    shared = ROOT.parent / "shared" / "data"
    return shared if shared.is_dir() else None
