"""Files of a server that are damaged at rest, and whether it says so or has all that was answered.

    scene = damage.make_scene(program, folder, "flat", seed=1)
    counts = damage.rounds(program, scene, count=100, seed=1)

A scene is an index with logs, as a server that was killed has left it, and a plain model of what
was answered. In each round a copy of its files is damaged in one place: cut, altered, swapped,
doubled, deleted. Then the server refuses to start with one line that names a file, and alters
nothing; or an answer says that there is damage; or all that was answered is there. The standard
library alone.
"""

import dataclasses
import random
import resource
import shutil
import time
from pathlib import Path

from . import running_server

ROWS, DIM = 2000, 12


@dataclasses.dataclass
class Scene:
    kind: str
    folder: Path  # base.knear and what is beside it
    rows: dict  # id: its first number, None: as it was built

    def logs(self):
        return sorted(path.name for path in self.folder.glob("base.knear.log-*"))


def make_scene(program, folder, kind, seed):
    """An index of a kind with two logs, of a checkpoint that failed, and changes in both."""
    folder = Path(folder)
    file = running_server.build(program, folder, kind, ROWS, DIM, seed)
    scene = Scene(kind, folder, dict.fromkeys(range(ROWS)))
    source = random.Random(seed)
    with running_server.Server(program, "--index", f"base={file}") as server:
        for turn in range(2):
            for _ in range(source.randint(4, 9) if turn == 0 else source.choice([0, 2, 8])):
                _change(server, scene.rows, source, ROWS * (turn + 1))
            if turn == 0:
                _fail_checkpoint(server)
    if len(scene.logs()) != 2:
        raise AssertionError(f"there are not two logs, but {scene.logs()}")
    return scene


def _change(server, rows, source, first):
    given = [id for id, value in rows.items() if value is not None]
    id = source.choice(given) if given and source.random() < 0.4 else first + len(rows)
    path = source.choice(["remove", "replace"]) if id in rows else "add"
    body = {"ids": [id]}
    if path == "remove":
        rows.pop(id)
    else:
        rows[id] = float(source.randrange(1000))
        body["vectors"] = [[rows[id]] * DIM]
    status, answer = server.ask(f"/indexes/base/{path}", body)
    if status != 200:
        raise AssertionError(answer)


def _fail_checkpoint(server):
    """Has a checkpoint fail after it has begun the next log: no file may grow beyond the head of
    that, as on a full disk."""
    process = server.process.pid
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (8192, limits[1]))
    status, answer = server.ask("/indexes/base/checkpoint", {})
    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
    if status != 503:
        raise AssertionError(f"a checkpoint was to fail, but {status}: {answer}")


def rounds(program, scene, count, seed, seconds=None, say=None):
    """Damages a copy of a scene and starts a server on it, `count` times or for some seconds.
    Returns counts of what came of it. Raises AssertionError where a change is lost in silence.
    """
    source = random.Random(f"{seed} {scene.kind}")
    counts = {"rounds": 0, "refused": 0, "said in an answer": 0, "no harm": 0}
    end = time.monotonic() + seconds if seconds else None
    copy = scene.folder.parent / (scene.folder.name + "-copy")
    while time.monotonic() < end if end else counts["rounds"] < count:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(scene.folder, copy)
        what = _damage(copy, source)
        try:
            counts[_outcome(program, scene, copy)] += 1
        except AssertionError as lost:
            raise AssertionError(f"{scene.kind}, seed {seed}, {what}: {lost}") from lost
        counts["rounds"] += 1
        if say:
            say(what, counts)
    shutil.rmtree(copy, ignore_errors=True)
    return counts


def _outcome(program, scene, folder):
    before = {path.name: path.read_bytes() for path in folder.glob("base.knear*")}
    try:
        server = running_server.Server(program, "--index", f"base={folder / 'base.knear'}")
    except RuntimeError as refused:
        said = str(refused)
        if not said.startswith("knear: ") or said.count("\n") != 1 or "base.knear" not in said:
            raise AssertionError(f"it ended, but said: {said!r}") from None
        after = {path.name: path.read_bytes() for path in folder.glob("base.knear*")}
        for name, content in before.items():
            if name.endswith((".new", ".checkpoint")) or ".tmp-" in name:
                continue  # of a checkpoint that was killed
            if after.get(name) != content:
                raise AssertionError(f"it refused to start, but altered {name}") from None
        return "refused"
    with server:
        rows = scene.rows
        if not any(name.startswith("base.knear.log-") for name in before):
            rows = dict.fromkeys(range(ROWS))  # whoever deletes all logs gives the changes up
        try:
            running_server.compare(server, rows, {}, {}, DIM, scene.kind, damage=True)
        except running_server.Damaged as said:
            if "base.knear" not in str(said):
                raise AssertionError(f"an answer names no file: {said}") from None
            return "said in an answer"
        status, errors = server.stop()
        if (status, errors) != (0, ""):
            raise AssertionError(f"it ended with {status}: {errors}")
        return "no harm"


def _damage(folder, source):
    """Damages one file of those in a folder, or two, and returns what it did, in words."""
    # Logs are small, and what is in them is nowhere else: they come more often.
    files = sorted(folder.glob("base.knear*"))
    files = [path for path in files if path.stat().st_size > 0]
    logs = [path for path in files if ".log-" in path.name]
    path = source.choice(logs if logs and source.random() < 0.7 else files)
    content = bytearray(path.read_bytes())
    # Where something is: the heads and what follows, not the zeros of a head's block.
    written = [at for at in range(0, len(content), 8) if any(content[at : at + 8])]
    begin = source.choice(written) + source.randrange(8) if written else 0
    begin = min(begin, len(content) - 1)
    size = min(source.choice([1, 8, 56, 80, 128, 512, 4096]), len(content) - begin)
    how = source.choice(["cut", "cut", "truncate", "flip", "flip", "zero", "swap", "double",
                         "append", "swap files", "delete"])  # fmt: skip
    what = f"{how} {path.name} at byte {begin}, {size} bytes"
    if how == "cut":
        del content[begin : begin + size]
    elif how == "truncate":
        del content[begin:]
    elif how == "flip":
        content[begin] ^= 1 << source.randrange(8)
    elif how == "zero":
        content[begin : begin + size] = bytes(size)
    elif how == "swap":
        other = min(source.choice(written), len(content) - size)
        part = content[begin : begin + size]
        content[begin : begin + size] = content[other : other + size]
        content[other : other + size] = part
        what += f" with those at {other}"
    elif how == "double":
        content[begin:begin] = content[begin : begin + size]
    elif how == "append":
        content += source.randbytes(size)
    elif how == "swap files":
        other = source.choice(files)
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return f"{path.name} and {other.name} swapped"
    elif how == "delete":
        path.unlink()
        return f"{path.name} deleted"
    path.write_bytes(content)
    return what
