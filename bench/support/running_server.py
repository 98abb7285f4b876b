"""A running `knear serve`, and one that is killed under load again and again.

    with running_server.Server(program, "--index", "base.knear") as server: ... server.port
    file = running_server.build(program, folder, "lists", rows=300, dim=12, seed=1)
    counts = running_server.kill_rounds(program, file, 300, 12, rounds=20, seed=1, kind="lists")

The standard library alone.
"""

import contextlib
import http.client
import json
import random
import re
import signal
import struct
import subprocess
import threading
import time


class Server:
    """`knear serve --port 0` with these words."""

    def __init__(self, program, *words, before=()):
        self.process = subprocess.Popen(
            [*before, str(program), "serve", *map(str, words), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+) serves ", line)
        if not found:
            self.process.kill()
            raise RuntimeError(line + self.process.communicate()[1])
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def stop(self):
        """(exit status, what it wrote to standard error), after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        errors = self.process.communicate(timeout=120)[1]
        return self.process.returncode, errors

    def ask(self, path, body=None):
        """(status, answer), of JSON."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = None if body is None else json.dumps(body)
        link.request("GET" if body is None else "POST", path, body)
        answer = link.getresponse()
        content = answer.read()
        link.close()
        return answer.status, json.loads(content)

    def figures(self):
        """The sum of each figure of /metrics over its labels, and "status N": answers with it."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        link.request("GET", "/metrics")
        out = {}
        for line in link.getresponse().read().decode().splitlines():
            if not line.startswith("#"):
                name = re.match(r"\w+", line)[0]
                value = float(line.rsplit(" ", 1)[1])
                out[name] = out.get(name, 0.0) + value
                if status := re.search(r'status="(\d+)"', line):
                    key = f"status {status[1]}"
                    out[key] = out.get(key, 0.0) + value
        link.close()
        return out

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])


# Kinds of index that are killed and damaged: words of `knear build`, what searches ask for, and
# whether a row that was added is found at the distance 0.
KINDS = {
    "flat": (["Flat"], {}, True),
    "flat in shards": (["Flat", "--shards", "3"], {}, True),
    "flat for products": (["Flat", "--metric", "ip"], {}, False),
    "lists": (["IVF8,Flat"], {"probes": 8}, True),
    "lists in shards": (["IVF8,Flat", "--shards", "2"], {"probes": 8}, True),
    "graph": (["Graph8"], {"recall": 1}, True),
    "codes": (["SQ8"], {}, False),
    "halves": (["SQfp16"], {}, True),
    "codes in lists": (["IVF8,SQ8"], {"probes": 8}, False),
    "products in lists": (["IVF8,PQ4x4"], {"probes": 8}, False),
}


def build(program, folder, kind, rows, dim, seed):
    """Builds an index of a kind, `base.knear` in a folder, and returns its path."""
    source = random.Random(seed)
    vectors, file = folder / "base.fvecs", folder / "base.knear"
    with open(vectors, "wb") as out:
        for _ in range(rows):
            out.write(
                struct.pack(f"<i{dim}f", dim, *(source.uniform(-20, -10) for _ in range(dim)))
            )
    words = ["build", "--base", vectors, "--out", file, "--index", *KINDS[kind][0]]
    subprocess.run([str(program), *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    vectors.unlink()
    return file


class _Changes:
    """What callers asked of one server, until it was killed."""

    def __init__(self):
        self.lock = threading.Lock()
        self.answered = []  # (id, its first number or None: removed), in order
        self.unsure = {}  # ids of changes that were not answered: what they would be

    def work(self, port, dim, first, seed):
        """Adds rows with ids from `first` on, replaces and removes some of them."""
        source, own = random.Random(seed), []
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # killed
            for id in range(first, first + 100000):
                change, path, value = id, "add", float(id - first)
                if len(own) > 5:
                    change = own[source.randrange(len(own))]
                    path = source.choice(["remove", "replace"])
                    if path == "remove":
                        own.remove(change)
                        value = None
                body = {"ids": [change]}
                if value is not None:
                    body["vectors"] = [[value] * dim]
                with self.lock:
                    self.unsure[change] = value
                link.request("POST", f"/indexes/base/{path}", json.dumps(body))
                answer = link.getresponse()
                told = json.loads(answer.read())
                if answer.status != 200:
                    raise AssertionError(told)
                with self.lock:
                    del self.unsure[change]
                    self.answered.append((change, value))
                if path == "add":
                    own.append(change)
        link.close()

    def checkpoint(self, port, source):
        """Asks for checkpoints all the time."""
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while True:
                link.request("POST", "/indexes/base/checkpoint", "")
                link.getresponse().read()
                time.sleep(source.uniform(0, 0.05))
        link.close()


def _kill_within_start(program, words, seconds):
    """Starts a server and kills it after that time, mostly before it answers."""
    process = subprocess.Popen(
        [str(program), "serve", *map(str, words), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    process.kill()
    out, errors = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise AssertionError(f"a start ended with {process.returncode}: {errors}")
    return out == ""


def kill_rounds(
    program, file, rows, dim, rounds, seed, kind="flat", callers=4, longest=0.5, say=None
):  # fmt: skip
    """Serves `file`, an index of a kind of `rows` x `dim`, to callers that add, replace and remove,
    with checkpoints all the time; kills it with SIGKILL after a time by chance; starts it again and
    kills it within some of the starts; compares with a plain model; `rounds` times. Returns counts.
    Raises AssertionError where an answered change is lost or the index does not open.
    """
    source = random.Random(f"{seed} {kind}")
    known = dict.fromkeys(range(rows))  # id: its first number, where it was given here
    counts = {"rounds": 0, "starts": 0, "changes": 0, "unanswered": 0, "there": 0, "cut": 0}
    words = ("--index", f"base={file}", "--checkpoint", "20k")
    for turn in range(rounds):
        changes = _Changes()
        with Server(program, *words) as server:
            begin = 1000000 * (turn + 1)
            threads = [
                threading.Thread(
                    target=changes.work,
                    args=(server.port, dim, begin + 100000 * i, f"{seed} {turn} {i}"),
                )
                for i in range(callers)
            ]
            if source.random() < 0.5:
                own = random.Random(f"{seed} {turn}")
                threads.append(
                    threading.Thread(target=changes.checkpoint, args=(server.port, own))
                )  # fmt: skip
            for each in threads:
                each.start()
            time.sleep(source.uniform(0.02, longest))
            server.kill()
            for each in threads:
                each.join()
        for _ in range(source.choice([0, 1, 1, 2])):
            counts["starts"] += _kill_within_start(program, words, source.uniform(0, 0.06))
        there = dict(known)
        for id, value in changes.answered:
            if value is None:
                there.pop(id)
            else:
                there[id] = value
        known = {id: value for id, value in there.items() if id not in changes.unsure}
        with Server(program, *words) as server:
            before = {id: there.get(id) for id in changes.unsure}
            made = compare(server, known, {**changes.unsure}, before, dim, kind)
            counts["there"] += len(made)
            known.update(dict.fromkeys(made))
            status, errors = server.stop()
            cut = re.fullmatch(
                r"(knear: '[^']*' ends at byte \d+ with \d+ bytes of a change that was not "
                r"answered; they are kept in '[^']*'\n)?",
                errors,
            )
            if status != 0 or not cut:
                raise AssertionError(f"it ended with {status}: {errors}")
            counts["cut"] += errors != ""
        counts["rounds"] += 1
        counts["changes"] += len(changes.answered)
        counts["unanswered"] += len(changes.unsure)
        if say and (turn + 1) % 50 == 0:
            say(counts)
    return counts


class Damaged(Exception):
    """An answer that says that a file is damaged, where that is allowed."""


def compare(server, known, unsure, before, dim, kind, damage=False):
    """Checks that the index holds `known` (id: its first number, or None where it is not known)
    and nothing but them and some of `unsure` (id: what its last change would make it), which it
    returns. before: what those were before that change. damage: whether an answer may say that
    there is some.
    """
    _, how, exact = KINDS[kind]

    def search(body):
        status, found = server.ask("/indexes/base/search", {**body, **how})
        if damage and status in (500, 503):
            raise Damaged(found)
        return status, found

    given = {id: value for id, value in known.items() if value is not None}
    for some in _parts(list(given)):
        status, found = search(
            {"queries": [[given[id]] * dim for id in some], "k": 1, "filter": some}
        )
        if status != 200 or (exact and found["distances"] != [[0.0]] * len(some)):
            raise AssertionError(f"of {len(some)} rows that were answered some are gone: {found}")
    for some in _parts([id for id in known if id not in given]):
        status, found = search({"queries": [[0.0] * dim], "k": 1, "filter": some})
        if status != 200:
            raise AssertionError(f"rows that were there are gone: {found}")
    made = []
    for id, value in unsure.items():
        status, found = search({"queries": [[value or 0.0] * dim], "k": 1, "filter": [id]})
        if status == 200:
            made.append(id)
        if status == 200 and exact and value is not None and found["distances"] != [[0.0]]:
            # The change was not made: then it is as it was before.
            status, found = search({"queries": [[before[id] or 0.0] * dim], "filter": [id]})
            if before[id] is None or found["distances"][0][0] != 0.0:
                raise AssertionError(f"row {id} is neither as it was nor as it would be: {found}")
        if status != 200 and before[id] is not None and value is not None:
            raise AssertionError(f"row {id}, which was to be replaced, is gone: {found}")
    rows = server.ask("/indexes/base")[1]["rows"]
    if rows != len(known) + len(made):
        raise AssertionError(f"{rows} rows are there, of {len(known)} and {len(made)} unanswered")
    return made


def _parts(ids):
    return [ids[begin : begin + 500] for begin in range(0, len(ids), 500)]
