"""Real SIFT descriptors from the photographs in Debian's wallpaper packages.

The packages are downloaded and unpacked into the cache (apt-get download, dpkg -x); nothing of
them is installed. What computes the descriptors, python3-opencv, is installed if this runs as
root, and asked for if not. The wallpapers' licences are free ones (CC-BY-SA, GPL, ...); they and
their authors are named in the packages' copyright files, which are unpacked with them.

Queries are descriptors of pictures that are not in the base. Only the strongest of a picture
are taken, so that none dominates. Sets made on machines with another OpenCV or
other instruction sets may differ in a few descriptors: the checksum is one of this machine.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np

PACKAGES = (
    "mate-backgrounds",
    "lomiri-wallpapers-16.04",
    "lomiri-wallpapers-20.04",
    "plasma-workspace-wallpapers",
)
# Not in the list: gnome-backgrounds, which in Debian 12 holds rendered patterns, no photographs.

FEWEST = 1_000  # a picture with fewer is a drawing or a gradient
DEBIAN_PYTHON = "/usr/bin/python3"


def say(text: str) -> None:
    print(f"sift: {text}", file=sys.stderr, flush=True)


def run(*command: str, **options) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options
    )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SystemExit(f"sift: '{' '.join(command)}' failed: {' '.join(last)}")


def ensure_opencv() -> None:
    if (
        subprocess.run(
            [DEBIAN_PYTHON, "-c", "import cv2"], check=False, capture_output=True
        ).returncode
        == 0
    ):
        return
    if os.geteuid() != 0:
        raise SystemExit("sift: needs OpenCV: sudo apt-get install python3-opencv")
    say("installing python3-opencv")
    run("apt-get", "update")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    lock = ("-o", "DPkg::Lock::Timeout=600")
    install = ("install", "-y", "--no-install-recommends", "python3-opencv")
    run("apt-get", *lock, *install, env=environment)


def unpack(package: str, folder: Path) -> Path:
    """Downloads and unpacks one Debian package into folder/package, once."""
    target = folder / package
    if target.is_dir():
        return target
    download = folder / f"{package}.download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    say(f"downloading {package}")
    command = ["apt-get", "download", package]
    if subprocess.run(command, cwd=download, check=False, capture_output=True).returncode != 0:
        if os.geteuid() == 0:
            run("apt-get", "update")
        run(*command, cwd=download)
    (deb,) = download.glob("*.deb")
    run("dpkg", "-x", str(deb), str(download / "files"))
    (download / "files").rename(target)
    shutil.rmtree(download)
    return target


def photographs(folder: Path) -> dict[str, Path]:
    """One file per picture, the largest: packages hold several sizes and a dark version of some."""
    largest: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted(unpack(package, folder).rglob("*")):
            if path.suffix.lower() not in (".jpg", ".jpeg", ".png") or path.is_symlink():
                continue
            parts = path.parts
            if path.stem == "screenshot" or "images_dark" in parts or "desktop" in parts:
                continue  # thumbnails, second versions, a distribution's logos on stripes
            if "contents" in parts:
                name = parts[parts.index("contents") - 1]
            else:
                name = re.sub(r"_\d+x\d+$", "", path.stem)
            key = f"{package}/{name}"
            if key not in largest or path.stat().st_size > largest[key].stat().st_size:
                largest[key] = path
    return dict(sorted(largest.items()))


def describe(picture: Path, limit: int, folder: Path) -> np.ndarray:
    """The `limit` strongest descriptors of one picture [n x 128] u8; kept in the cache."""
    identity = hashlib.sha256(picture.read_bytes()).hexdigest()[:16]
    for kept in sorted(folder.glob(f"{identity}-*.npy")):
        values = np.load(kept)
        taken = int(kept.stem.split("-")[1])
        if taken >= limit or len(values) < taken:  # then these are all that there are
            return values[:limit]
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{identity}-{limit}.npy"
    partial = kept.with_suffix(".part")
    script = Path(__file__).with_name("photographs.py")
    # Not the virtual environment's packages: this is Debian's interpreter.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = (DEBIAN_PYTHON, str(script), str(picture), str(partial), "--limit", str(limit))
    run(*command, env=clean)
    partial.rename(kept)
    return np.load(kept)


def make(
    rows: int, queries: int, seed: int, cache: Path, per_picture: int
) -> tuple[np.ndarray, np.ndarray, dict]:
    """Base [up to rows x 128], queries [queries x 128], u8, and a description."""
    ensure_opencv()
    pictures = photographs(cache / "photographs")
    say(f"{len(pictures)} pictures")
    found = []
    for i, (name, picture) in enumerate(pictures.items()):
        values = describe(picture, per_picture, cache / "descriptors")
        say(f"{i + 1}/{len(pictures)} {name}: {len(values):,} descriptors")
        if len(values) >= FEWEST:
            found.append((name, values))
    # An order that has nothing to do with the names' alphabet, nor with the packages.
    found.sort(key=lambda item: zlib.crc32(f"{seed}:{item[0]}".encode()))

    # Every picture for the queries gives its share; the rest is the base.
    random = np.random.Generator(np.random.PCG64([seed, 1]))
    from_each = -(-queries // 8)
    asked, asked_names, rest = [], [], []
    for name, values in found:
        if sum(map(len, asked)) < queries and len(values) >= from_each:
            asked.append(values[random.choice(len(values), from_each, replace=False)])
            asked_names.append(name)
        else:
            rest.append((name, values))
    if sum(map(len, asked)) < queries or not rest:
        raise SystemExit(f"sift: the photographs do not give {queries:,} queries")
    base = np.concatenate([values for _, values in rest])
    base = base[random.permutation(len(base))[:rows]]
    about = {
        "descriptors of a picture, at most": per_picture,
        "pictures in the base": len(rest),
        "pictures of the queries": asked_names,
        "rows that were asked for": rows,
    }
    return base, np.concatenate(asked)[:queries], about
