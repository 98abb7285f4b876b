"""A running `knear serve`, and one that is killed under load again and again.

    with running_server.Server(program, "--index", "base.knear") as server: ... server.port
    counts = running_server.kill_rounds(program, "base.knear", rows=300, dim=12, rounds=20, seed=1)

The standard library alone.
"""

import contextlib
import http.client
import json
import random
import re
import signal
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


class _Changes:
    """What callers asked of one server, until it was killed."""

    def __init__(self):
        self.lock = threading.Lock()
        self.answered = []  # (id, its first number or None: removed), in order
        self.unsure = set()  # ids of changes that were not answered

    def work(self, port, dim, first, seed):
        """Adds rows with ids from `first` on, and removes some of them."""
        source, own = random.Random(seed), []
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # killed
            for id in range(first, first + 100000):
                gone = own.pop(source.randrange(len(own))) if len(own) > 5 else None
                change, value = (id, float(id - first)) if gone is None else (gone, None)
                path, body = "remove", {"ids": [change]}
                if gone is None:
                    path, body = "add", {"vectors": [[value] * dim], "ids": [change]}
                with self.lock:
                    self.unsure.add(change)
                link.request("POST", f"/indexes/base/{path}", json.dumps(body))
                answer = link.getresponse()
                told = json.loads(answer.read())
                if answer.status != 200:
                    raise AssertionError(told)
                with self.lock:
                    self.unsure.discard(change)
                    self.answered.append((change, value))
                if gone is None:
                    own.append(change)
        link.close()


def kill_rounds(program, file, rows, dim, rounds, seed, callers=4, longest=0.5, say=None):
    """Serves `file`, an index of `rows` x `dim`, to callers that add and remove, with a checkpoint
    every few dozen changes; kills it with SIGKILL after a time by chance; serves it again and
    compares; `rounds` times. Returns counts. Raises AssertionError where an answered change is lost
    or the index does not open.
    """
    source = random.Random(seed)
    known = dict.fromkeys(range(rows))  # id: its first number, where it was given here
    counts = {"rounds": 0, "changes": 0, "unanswered": 0, "there": 0}
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
            for each in threads:
                each.start()
            time.sleep(source.uniform(0.02, longest))
            server.kill()
            for each in threads:
                each.join()
        there = dict(known)
        for id, value in changes.answered:
            if value is None:
                there.pop(id)
            else:
                there[id] = value
        known = {id: value for id, value in there.items() if id not in changes.unsure}
        with Server(program, *words) as server:
            made = _compare(server, known, changes.unsure, dim)
            counts["there"] += len(made)
            known.update(dict.fromkeys(made))
            status, errors = server.stop()
            if (status, errors) != (0, ""):
                raise AssertionError(f"it ended with {status}: {errors}")
        counts["rounds"] += 1
        counts["changes"] += len(changes.answered)
        counts["unanswered"] += len(changes.unsure)
        if say and (turn + 1) % 50 == 0:
            say(counts)
    return counts


def _compare(server, known, unsure, dim):
    """Checks that the index holds `known` and nothing but them and some of `unsure`, which it
    returns."""
    for some in _parts([id for id, value in known.items() if value is not None]):
        body = {"queries": [[known[id]] * dim for id in some], "k": 1, "filter": some}
        status, found = server.ask("/indexes/base/search", body)
        if status != 200 or found["distances"] != [[0.0]] * len(some):
            raise AssertionError(f"of {len(some)} rows that were answered some are gone: {found}")
    for some in _parts([id for id, value in known.items() if value is None]):
        body = {"queries": [[0.0] * dim], "k": 1, "filter": some}
        status, found = server.ask("/indexes/base/search", body)
        if status != 200:
            raise AssertionError(f"rows that were there are gone: {found}")
    made = [
        id
        for id in unsure
        if server.ask("/indexes/base/search", {"queries": [[0.0] * dim], "filter": [id]})[0] == 200
    ]
    rows = server.ask("/indexes/base")[1]["rows"]
    if rows != len(known) + len(made):
        raise AssertionError(f"{rows} rows are there, of {len(known)} and {len(made)} unanswered")
    return made


def _parts(ids):
    return [ids[begin : begin + 500] for begin in range(0, len(ids), 500)]
