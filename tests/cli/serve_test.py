"""knear serve: answers, what it refuses, what is there after a kill, tokens, limits, its end.

The logs by themselves are tested in tests/serve, kills in kills_test.py, and the client in
python/tests/test_client.py.
"""

import concurrent.futures
import contextlib
import http.client
import json
import math
import os
import pathlib
import pty
import random
import re
import resource
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import server_cases
from program_cases import ProgramTest, brute_force, main, write_vecs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "support"))
import bad_requests


class Server(server_cases.Server):
    """A running `knear serve --port 0`."""

    command, ends = "serve", signal.SIGTERM
    says = r"http://127\.0\.0\.1:(\d+) serves \d+ index(?:es)?; Ctrl-C ends it"
    type_of_json = "application/json"
    resets = (ConnectionResetError,)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def figure(self, name):
        """The sum of a figure over its labels."""
        total = 0.0
        for line in self.ask("/metrics")[2].decode().splitlines():
            if re.match(re.escape(name) + r"[ {]", line):
                total += float(line.rsplit(" ", 1)[1])
        return total


def binary_search(queries, k, recall=0.0, probes=0, timeout=0, flags=0, filter=()):
    dim = len(queries[0])
    head = struct.pack(
        "<4sIQQQdQQQQ",
        b"KNSQ",
        1,
        len(queries),
        dim,
        k,
        recall,
        probes,
        timeout,
        flags | (2 if filter else 0),
        len(filter),
    )
    values = [x for row in queries for x in row]
    return head + struct.pack(f"<{len(filter)}q{len(values)}f", *filter, *values)


BINARY = {"Content-Type": "application/octet-stream"}


class Served(ProgramTest):
    def setUp(self):
        super().setUp()
        if "KNEAR_SERVE is off" in self.run_program("serve", "--index", "none").stderr:
            self.skipTest("this build serves no indexes")
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "base.knear")

    def server(self, *words):
        return Server(self, "--index", "base.knear", *words)

    def all_is_given_back(self, server):  # a moment after an answer, or the end of a connection
        for _ in range(1200):
            if server.figure("knear_reserved_bytes") == 0:
                break
            time.sleep(0.05)
        self.assertEqual(server.figure("knear_reserved_bytes"), 0)


class Answers(Served):
    def test_searches(self):
        server = self.server()
        ids, distances = brute_force(self.queries, self.base, 5)
        found = server.json("/indexes/base/search", {"queries": self.queries, "k": 5})
        self.assertEqual(list(found), ["distances", "ids", "certified"])
        self.assertEqual(found["ids"], ids)
        self.assertEqual(found["distances"], distances)
        self.assertEqual(found["certified"], [True] * len(ids))
        for i in range(3):
            one = server.json("/indexes/base/search", {"queries": [self.queries[i]], "k": 5})
            self.assertEqual((one["ids"], one["distances"]), ([ids[i]], [distances[i]]))
        allowed = list(range(0, 300, 7))
        found = server.json(
            "/indexes/base/search", {"queries": self.queries, "k": 50, "filter": allowed}
        )
        wanted = brute_force(self.queries, [self.base[i] for i in allowed], 50)
        self.assertEqual(
            found["ids"], [[allowed[i] if i >= 0 else -1 for i in row] for row in wanted[0]]
        )
        self.assertEqual(
            found["distances"],
            [[d if math.isfinite(d) else None for d in row] for row in wanted[1]],
        )
        self.assertIn(None, found["distances"][0])
        default = server.json("/indexes/base/search", {"queries": self.queries[:1]})
        self.assertEqual(len(default["ids"][0]), 10)
        none = server.json("/indexes/base/search", {"queries": []})
        self.assertEqual(none, {"distances": [], "ids": [], "certified": []})
        # Beyond float32: JSON has no infinity.
        far = server.ask("/indexes/base/search", {"queries": [[3e38] * 12], "k": 2})[2]
        found = json.loads(far, parse_constant=self.fail)
        self.assertEqual((found["distances"], found["ids"]), ([[None, None]], [[0, 1]]))
        self.assertEqual(server.end(), (0, "", ""))

    def test_searches_in_the_binary_form(self):
        server = self.server()
        ids, distances = brute_force(self.queries, self.base, 5)
        status, headers, content = server.ask(
            "/indexes/base/search", binary_search(self.queries, 5), BINARY
        )
        self.assertEqual((status, headers["Content-Type"]), (200, "application/octet-stream"))
        magic, version, rows, k = struct.unpack_from("<4sIQQ", content)
        self.assertEqual((magic, version, rows, k), (b"KNSA", 1, len(ids), 5))
        places = rows * k
        self.assertEqual(list(struct.unpack_from(f"<{places}q", content, 24)), sum(ids, []))
        self.assertEqual(
            list(struct.unpack_from(f"<{places}f", content, 24 + 8 * places)), sum(distances, [])
        )
        self.assertEqual(content[24 + 12 * places :], b"\1" * rows)
        body = binary_search(self.queries[:1], 4, filter=[5, 9])
        content = server.ask("/indexes/base/search", body, BINARY)[2]
        self.assertEqual(set(struct.unpack_from("<4q", content, 24)), {5, 9, -1})
        self.assertEqual(struct.unpack_from("<4f", content, 24 + 32)[2:], (math.inf, math.inf))
        status, headers, content = server.ask("/indexes/base/search", body[:-1], BINARY)
        self.assertEqual((status, headers["Content-Type"]), (400, "application/json"))
        vectors = [[float(i)] * 12 for i in range(2)]
        head = struct.pack("<4sIQQQ", b"KNVQ", 1, 2, 12, 1)
        body = head + struct.pack("<2q24f", 900, 800, *sum(vectors, []))
        content = server.ask("/indexes/base/add", body, BINARY)[2]
        self.assertEqual(content, struct.pack("<4sIQ2q", b"KNIA", 1, 2, 900, 800))
        self.assertEqual(server.refused("/indexes/base/add", body, BINARY)[0], 409)
        self.assertEqual(server.ask("/indexes/base/replace", body, BINARY)[0], 200)
        self.assertEqual(server.refused("/indexes/base/remove", body, BINARY)[0], 415)

    def test_changes(self):
        server = self.server()
        added = server.json("/indexes/base/add", {"vectors": [[9.0] * 12, [8.5] * 12]})
        self.assertEqual(added, {"ids": [300, 301]})
        self.assertEqual(
            server.json("/indexes/base/add", {"vectors": [[7.0] * 12], "ids": [7000]}),
            {"ids": [7000]},
        )
        found = server.json("/indexes/base/search", {"queries": [[9.0] * 12], "k": 2})
        self.assertEqual((found["ids"], found["distances"]), ([[300, 301]], [[0.0, 3.0]]))
        self.assertEqual(
            server.json("/indexes/base/replace", {"ids": [301], "vectors": [[9.0] * 12]}), {}
        )
        found = server.json("/indexes/base/search", {"queries": [[9.0] * 12], "k": 2})
        self.assertEqual(found["distances"], [[0.0, 0.0]])
        self.assertEqual(server.json("/indexes/base/remove", {"ids": [300, 12345]}), {"removed": 1})
        for path, body, status, says in (
            ("add", {"vectors": [[1.0] * 12], "ids": [7000]}, 409, "7000"),
            ("add", {"vectors": [[1.0] * 12] * 2, "ids": [8000, 8000]}, 409, "8000"),
            ("add", {"vectors": [[1.0] * 12] * 2, "ids": [8000]}, 400, "ids has 1 numbers"),
            ("add", {"vectors": [[1.0] * 12], "ids": [-4]}, 400, "-4"),
            ("add", {"vectors": [[1.0] * 12], "ids": [2**62 + 1]}, 400, "2^62"),
            ("add", {"vectors": [[1.0] * 12], "ids": [2**63 - 1]}, 400, "2^62"),
            ("add", {"vectors": [[1.0] * 11]}, 400, "12 columns"),
            ("replace", {"ids": [5555], "vectors": [[1.0] * 12]}, 404, "5555"),
            ("replace", {"vectors": [[1.0] * 12]}, 400, "'ids' is missing"),
            ("remove", {"ids": [4, 4]}, 409, "4 twice"),
            ("remove", {"ids": [4], "all": True}, 400, "'all' is not known"),
        ):
            found = server.refused("/indexes/base/" + path, body)
            self.assertEqual(found[0], status, (path, found))
            self.assertIn(says, found[1])
        about = server.json("/indexes/base")
        self.assertEqual((about["rows"], about["next_id"]), (302, 7001))
        server.kill()
        server = self.server()
        self.assertEqual(server.json("/indexes/base")["rows"], 302)
        self.assertEqual(server.json("/indexes/base/checkpoint", "")["log_bytes"], 8192)
        self.assertEqual(server.end(), (0, "", ""))
        self.assertIn("302", self.ok("info", "base.knear"))

    def test_several_indexes_and_what_is_told_of_them(self):
        self.ok("build", "--base", "base.fvecs", "--index", "IVF4,Flat", "--out", "lists.knear")
        self.ok(
            "build", "--base", "base.fvecs", "--index", "Flat", "--shards", "2", "--out", "s.knear"
        )
        server = self.server("lists.knear", "parts=s.knear")
        told = server.json("/indexes")["indexes"]
        self.assertEqual([each["name"] for each in told], ["base", "lists", "parts"])
        self.assertEqual([each["writable"] for each in told], [True, True, True])
        self.assertEqual(told[1]["kind"], "IVF4,Flat")
        self.assertEqual([each["needs_recall"] for each in told], [False, True, False])
        # The form of the page asks for a recall where it is needed.
        page = server.ask("/")[2].decode()
        self.assertIn('goesByRecall() && !("recall" in body || "probes" in body)', page)
        for name in "base", "lists", "parts":
            body = {"queries": self.queries[:1], "k": 5}
            needed = server.ask(f"/indexes/{name}/search", body)[0] == 400
            self.assertEqual(needed, name == "lists")
            self.assertEqual(
                server.ask(f"/indexes/{name}/search", {**body, "recall": 0.95})[0], 200
            )
        ids, _ = brute_force(self.queries, self.base, 5)
        for name, more in ("parts", {}), ("lists", {"probes": 4}), ("lists", {"recall": 1}):
            body = {"queries": self.queries, "k": 5, **more}
            self.assertEqual(server.json(f"/indexes/{name}/search", body)["ids"], ids)
        body = {"queries": self.queries[:1], "k": 5, "probes": 1}
        self.assertEqual(server.json("/indexes/lists/search", body)["certified"], [False])
        self.assertEqual(server.ask("/indexes/lists/search", {**body, "certify": True})[0], 200)
        self.assertEqual(
            server.ask("/indexes/lists/search", {**body, "probes": None, "recall": 0.5})[0], 200
        )
        status, says = server.refused("/indexes/lists/search", {"queries": self.queries[:1]})
        self.assertEqual((status, "probes" in says), (400, True))
        last = server.json("/indexes/parts")["last_search"]
        self.assertEqual((last["k"], last["queries"]), (5, len(ids)))
        self.assertEqual((last["promised_recall"], last["expected_recall"]), (1, 1))
        self.assertEqual(server.json("/health")["status"], "ok")
        paths = server.json("/openapi.json")["paths"]
        actions = "search", "add", "remove", "replace", "reload", "checkpoint"
        plain = "/", "/health", "/metrics", "/openapi.json", "/indexes", "/indexes/{name}"
        wanted = {path: ["get"] for path in plain}
        wanted |= {f"/indexes/{{name}}/{action}": ["post"] for action in actions}
        self.assertEqual({path: list(methods) for path, methods in paths.items()}, wanted)
        for methods in paths.values():
            for method in methods.values():  # of any path, for a query string, say
                self.assertIn("400", method["responses"])
        self.assertGreaterEqual(server.figure("knear_requests_total"), 10)
        self.assertEqual(server.figure("knear_rows"), 900)
        self.assertEqual(server.figure("knear_internal_errors_total"), 0)
        for line in server.ask("/metrics")[2].decode().splitlines():
            self.assertRegex(line, r"\A(# (HELP|TYPE) knear_\w+ .+|knear_\w+(\{[^{}]*\})? \S+)\Z")
        status, headers, page = server.ask("/")
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotRegex(page.decode(), r'(src|href)="(https?:)?//')

    def test_a_terminal_is_shown_what_the_start_waits_for(self):
        rows, dim = 20000, 64
        with open(self.path("big.u8bin"), "wb") as file:
            file.write(struct.pack("<II", rows, dim) + random.Random(3).randbytes(rows * dim))
        self.ok("build", "--base", "big.u8bin", "--index", "Flat", "--out", "big.knear")
        end, terminal = pty.openpty()
        process = subprocess.Popen(
            [self.program, "serve", "--index", "big.knear", "--read-only", "--port", "0"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=terminal,
        )
        self.addCleanup(os.close, end)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        os.close(terminal)
        self.assertIn(b"serves 1 index", process.stdout.readline())
        self.assertTrue(select.select([end], [], [], 10)[0], "nothing was shown")
        shown = os.read(end, 1 << 16)
        self.assertRegex(shown.decode(), r"\[#* *\] +\d+ %")
        self.assertTrue(shown.endswith(b"\x1b[K"), "the bar is wiped before the server answers")

    def test_many_callers_get_their_own_answers(self):
        server = self.server("--threads", "1")
        ids, distances = brute_force(self.queries, self.base, 5)

        def one(number):
            which = number % len(self.queries)
            body = {"queries": [self.queries[which]], "k": 5}
            found = server.json("/indexes/base/search", body)
            return found["ids"] == [ids[which]] and found["distances"] == [distances[which]]

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertTrue(all(pool.map(one, range(400))))
        self.assertEqual(server.figure("knear_queries_total"), 400)
        self.assertLessEqual(server.figure("knear_batch_queries_count"), 400)

    def test_a_connection_that_stays_open(self):
        server = self.server()
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for i in range(5):
            link.request(
                "GET" if i % 2 else "POST",
                "/indexes/base" if i % 2 else "/indexes/base/search",
                None if i % 2 else json.dumps({"queries": self.queries[:1]}),
            )
            answer = link.getresponse()
            self.assertEqual((answer.status, answer.headers["Connection"]), (200, None))
            answer.read()
        link.request(
            "POST",
            "/indexes/base/search",
            iter([b'{"queries": ', b"[]}"]),
            {"Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )
        self.assertEqual(link.getresponse().status, 200)
        link.close()
        # Two requests at once, one after the other.
        one = b"GET /health HTTP/1.1\r\n" + server.host + b"\r\n"
        self.assertEqual(server.raw(one + one).count(b"HTTP/1.1 200"), 2)
        body = b'{"queries": []}'
        told = server.raw(
            b"POST /indexes/base/search HTTP/1.1\r\n"
            + server.host
            + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        self.assertRegex(told, rb"(?s)\AHTTP/1\.1 100 .*HTTP/1\.1 200 ")


class Refused(Served):
    def test_requests(self):
        server = self.server("--max-body", "100k", "--max-k", "20", "--max-rows", "3")
        query = {"queries": self.queries[:1]}
        for path, body, status, says in (
            ("/none", None, 404, "nothing under this path"),
            ("/indexes/none", None, 404, "no index of this name"),
            ("/indexes/none/search", query, 404, "no index of this name"),
            ("/indexes/base/none", query, 404, "nothing under this path"),
            ("/indexes/base/search", None, 405, "is for POST"),
            ("/health", query, 405, "is for GET"),
            ("/indexes/base/search?k=1", query, 400, "query string"),
            ("/../../etc/passwd", None, 404, "nothing under this path"),
            ("/indexes/base/search", {**query, "k": 21}, 400, "k must be between 1 and 20"),
            ("/indexes/base/search", {"queries": self.queries[:4]}, 413, "more than 3 rows"),
            ("/indexes/base/search", {**query, "filter": [1, 5000]}, 400, "5000"),
            ("/indexes/base/search", {**query, "probes": 2}, 400, "probes"),
            ("/indexes/base/search", "x" * 100000, 400, "no JSON"),
            ("/indexes/base/search", "x" * 200000, 413, "larger than 102400 bytes"),
            ("/indexes/base/search", b"\xff\xfe", 400, "no JSON"),
        ):
            found = server.refused(path, body)
            self.assertEqual(found[0], status, (path, found))
            self.assertIn(says, found[1])
        self.assertEqual(server.refused("/health", method="DELETE")[0], 405)
        packed = {"Content-Encoding": "gzip"}
        self.assertEqual(server.refused("/indexes/base/search", b"x", packed)[0], 415)
        self.assertEqual(server.json("/indexes/base/search", query)["ids"][0][0] >= 0, True)

    def test_pages_of_other_sites(self):
        server = self.server()
        for headers in (
            {"Host": "example.org"},
            {"Host": f"example.org:{server.port}"},
            {"Origin": "http://example.org"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{server.port + 1}"},
        ):
            self.assertEqual(server.refused("/indexes", headers=headers)[0], 403, headers)
        own = {"Origin": f"http://127.0.0.1:{server.port}"}
        self.assertEqual(server.ask("/indexes", headers=own)[0], 200)
        at = f":{server.port}"
        for host in "localhost" + at, "LOCALHOST" + at, "[::1]" + at, "localhost", "127.0.0.1:1":
            self.assertEqual(server.ask("/indexes", headers={"Host": host})[0], 200, host)
        listening = pathlib.Path("/proc/net/tcp").read_text()
        self.assertIn(f"0100007F:{server.port:04X} ", listening)
        self.assertNotIn(f"00000000:{server.port:04X} ", listening)

    def test_bytes_that_are_no_request(self):
        server = self.server("--max-body", "1M", "--timeout", "2")
        host = server.host
        post = b"POST /indexes/base/search HTTP/1.1\r\n" + host
        for data, status in (
            (b"GET / HTTP/1.1\r\n\r\n", b"400"),
            (b"GET /health HTTP/1.1\r\n" + host + host + b"\r\n", b"400"),
            (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n" + host + b"\r\n", b"414"),
            (post + b"Content-Length: -5\r\n\r\n", b"400"),
            (post + b"Content-Length: 9999999999\r\n\r\n", b"413"),
            (post + b"Content-Length: 99999999999999999999999\r\n\r\n", b"413"),
            (post + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\nxx", b"413"),
            (post + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", b"400"),
            (post + b"\r\n", b"400"),
        ):
            answer = server.raw(data, end=False)
            self.assertRegex(answer, rb"\AHTTP/1\.1 " + status + rb" ", data[:80])
        for data in (
            b"",
            b"\r\n\r\n",
            bytes(range(256)) * 64,
            b"GET / HTT",
            b"GET / HTT\r\n\r\n",
            post + b"Content-Length: 50\r\n\r\n{",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        ):
            # Cut off, or no HTTP at all: refused, or the connection is closed.
            self.assertRegex(server.raw(data), rb"\A(HTTP/1\.1 4\d\d |\Z)", data[:60])
        self.assertEqual(server.json("/health")["status"], "ok")
        self.assertEqual(server.end(), (0, "", ""))

    def test_altered_requests(self):
        """Mutations of valid requests that keep their structure, and those that are kept."""
        server = self.server("--max-rows", "100")
        counts = bad_requests.send(server.port, dim=12, refused=2500, seed=1)
        self.assertEqual(counts.pop("unexpected", []), [])
        self.assertEqual(counts["4xx"], 2500)
        self.assertEqual(server.figure("knear_internal_errors_total"), 0)
        self.assertEqual(server.json("/health")["status"], "ok")
        self.assertEqual(server.end(), (0, "", ""))

    def test_requests_sent_in_part_hold_up_no_other(self):
        server = self.server("--timeout", "2")
        half = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for one in half[:100]:
            one.sendall(b"GET / HTT")
        for one in half[100:]:
            one.sendall(
                b"POST /indexes/base/search HTTP/1.1\r\n"
                + server.host
                + b"Content-Length: 9\r\n\r\n{"
            )
        self.assertEqual(server.json("/health")["status"], "ok")
        # And are closed in the end; a body that does not come is told so.
        for i, one in enumerate(half):
            one.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                said = b"HTTP/1.1 408 " if i >= 100 else b""
                self.assertEqual(one.recv(100)[: len(said) or 100], said)
            one.close()
        self.assertEqual(server.end(), (0, "", ""))

    def test_heads_without_bodies_shut_nobody_out(self):
        server = self.server("--memory", "16M")
        small = {"queries": self.queries[:1], "k": 5}
        large = {"queries": self.queries[:30], "k": 2000}
        head = b"POST /indexes/base/search HTTP/1.1\r\n" + server.host
        head += b"Content-Length: 1700000\r\n\r\n"
        with contextlib.ExitStack() as stack:
            links = []
            for _ in range(40):
                links.append(socket.create_connection(("127.0.0.1", server.port), timeout=20))
                stack.enter_context(links[-1])
                links[-1].sendall(head)
            while server.figure("knear_connections") < 41:
                time.sleep(0.01)
            self.assertEqual(server.figure("knear_reserved_bytes"), 0)
            for _ in range(20):
                self.assertEqual(server.ask("/indexes/base/search", small)[0], 200)
            self.assertEqual(server.ask("/indexes/base/search", large)[0], 200)
        # Bodies that do come may take seven eighths; the rest is for small requests.
        self.all_is_given_back(server)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
            link.sendall(head + b" " * 1699999)
            while server.figure("knear_reserved_bytes") < 8 * 1699999:
                time.sleep(0.01)
            self.assertEqual(server.ask("/indexes/base/search", large)[0], 503)
            self.assertRegex(server.raw(head), rb"\AHTTP/1\.1 503 ")
            for _ in range(20):
                self.assertEqual(server.ask("/indexes/base/search", small)[0], 200)

    def test_more_connections_than_there_may_be(self):
        server = self.server("--max-connections", "3")
        links = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in range(3)]
        for link in links:
            link.request("GET", "/health")
            self.assertEqual(link.getresponse().read()[:10], b'{"status":')
        status, headers, content = server.ask("/health")
        self.assertEqual((status, headers["Retry-After"]), (503, "1"))
        self.assertIn("too many connections", json.loads(content)["error"])
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            more = [pool.submit(server.ask, "/health") for _ in range(400)]
            self.assertEqual({each.result()[0] for each in more}, {503})
        # Open connections continue, and a connection that ends frees its place.
        links[0].request("GET", "/health")
        self.assertEqual(links[0].getresponse().read()[:10], b'{"status":')
        links[1].close()
        status = 503
        for _ in range(100):
            status = server.ask("/health")[0]
            if status == 200:
                break
            time.sleep(0.05)
        self.assertEqual(status, 200)
        for link in links:
            link.close()

    def test_memory_and_deadlines(self):
        server = self.server("--memory", "1M", "--threads", "1")
        # A request that never fits is too large; one that fits alone is refused for now.
        body = {"queries": self.queries[:1] * 200, "k": 300}
        status, says = server.refused("/indexes/base/search", body)
        self.assertEqual((status, "--memory is 1048576" in says), (413, True))
        self.assertEqual(server.refused("/indexes/base/search", "x" * (2 << 20))[0], 413)
        head = b"POST /indexes/base/search HTTP/1.1\r\n" + server.host
        head += b"Content-Length: 100000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as held:
            held.sendall(head + b"x" * 99999)
            while server.figure("knear_reserved_bytes") < 8 * 99999:
                time.sleep(0.01)
            for body in "x" * 100000, {"queries": self.queries[:1] * 20, "k": 300}:
                status, headers, content = server.ask("/indexes/base/search", body)
                self.assertEqual((status, headers["Retry-After"]), (503, "1"), content)

        self.all_is_given_back(server)
        # A body in chunks takes what has come of it, and not what it might become.
        chunked = b"POST /indexes/base/search HTTP/1.1\r\n" + server.host
        chunked += b"Transfer-Encoding: chunked\r\n\r\n"
        small = {"queries": self.queries[:1], "k": 3}
        with socket.create_connection(("127.0.0.1", server.port)) as held:
            held.sendall(chunked + b'2\r\n{"\r\n')
            while server.figure("knear_reserved_bytes") == 0:
                time.sleep(0.01)
            self.assertEqual(server.ask("/indexes/base/search", small)[0], 200)
        text = json.dumps(small).encode()
        text += b" " * (60000 - len(text))
        pieces = b"".join(b"3e8\r\n%b\r\n" % text[i : i + 1000] for i in range(0, 60000, 1000))
        self.assertRegex(server.raw(chunked + pieces + b"0\r\n\r\n"), rb"\AHTTP/1\.1 200 ")
        self.all_is_given_back(server)  # or it would not fit beside something: 503
        answer = server.raw(chunked + 4 * pieces)
        self.assertRegex(answer, rb"\AHTTP/1\.1 413 ")
        # Searches that wait behind others, and have no time for that.
        source = random.Random(1)
        rows = [[source.random() for _ in range(64)] for _ in range(10000)]
        write_vecs(self.path("more.fvecs"), rows, "f")
        self.ok("build", "--base", "more.fvecs", "--index", "Flat", "--out", "more.knear")
        server = Server(self, "--index", "more.knear", "--threads", "1", "--max-waiting", "4")
        large = {"queries": rows[:3000], "k": 100}
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            slow = pool.submit(server.ask, "/indexes/more/search", large)
            while server.figure("knear_requests_total") + 1 and not slow.done():
                if server.figure("knear_reserved_bytes") > 4 << 20:
                    break
                time.sleep(0.01)
            body = {"queries": rows[:1], "timeout_ms": 1}
            late = [pool.submit(server.ask, "/indexes/more/search", body) for _ in range(8)]
            statuses = {each.result()[0] for each in late}
            self.assertLessEqual(statuses, {200, 503, 504})
            self.assertEqual(slow.result()[0], 200)
        self.assertEqual(server.ask("/indexes/more/search", {"queries": rows[:1]})[0], 200)

    def test_words(self):
        self.fails(2, "serve", "--port", "0", says="--index is required")
        index = ["serve", "--index", "base.knear"]
        self.fails(1, *index, "--port", "70000", says="--port must be between 0 and 65535")
        self.fails(1, *index, "--listen", "0.0.0.0", says="needs --token-file")
        self.fails(1, *index, "--listen", "words", says="--listen needs an address")
        self.fails(1, *index, "--timeout", "0", says="--timeout must be between")
        self.fails(1, *index, "--max-calibration", "0", says="--max-calibration must be between")
        self.fails(1, *index, "--audit", "2", says="--audit must be between 0 and 1, but is 2")
        says = "--audit is 0.5, but index Flat compares all rows"
        self.fails(1, *index, "--audit", "0.5", "--port", "0", says=says)
        self.fails(1, *index, "base.knear", says="two indexes have the name base")
        self.fails(1, *index, "a b=base.knear", says="the name 'a b'")
        self.fails(1, "serve", "--index", "none.knear", says="none.knear")
        self.fails(1, "serve", "--index", "base.fvecs", says="is no .knear file")
        self.fails(1, *index, "--data", "base.knear/none", says="base.knear/none")
        self.fails(2, *index, "--data", ".", "--read-only", says="--read-only")
        self.fails(2, *index, "--checkpoint", "1M", "--read-only", says="--read-only")
        for content, says in (
            ("short\n", "of 16 characters or more, without spaces, but has 5 characters"),
            ("\n", "but has none"),
            ("a-token-of-some\n" * 2, "but has 2 lines"),
            ("a token of some length", "but has a space or another character"),
        ):
            self.file("token").write_text(content)
            self.fails(1, *index, "--token-file", "token", says=says)
        with self.pipe(b"") as (name, options):
            says = f"--token-file: '{name}' (a pipe) must hold one line"
            self.fails(1, *index, "--token-file", name, says=says, **options)
        server = self.server()
        self.fails(1, *index, "--port", "0", says="is served by another process")
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "other.knear")
        # Nothing is left beside an index that is not served in the end.
        taken = f"--port {server.port} of 127.0.0.1 is taken"
        other = ["serve", "--index", "other.knear"]
        self.fails(1, *other, "--port", server.port, says=taken)
        self.fails(1, *other, "--data", "new", "--port", server.port, says=taken)
        self.fails(1, *other, "none.knear", "--port", 0, says="none.knear")
        self.fails(1, *other, "base.fvecs", "--port", 0, "--data", "new", says="base.fvecs")

    def test_a_token(self):
        token = "a-token-of-some-length"
        self.file("token").write_text(token + "\n")
        server = self.server("--token-file", "token")
        for path in "/", "/health", "/openapi.json":
            self.assertEqual(server.ask(path)[0], 200)
        for headers in (
            {},
            {"Authorization": token},
            {"Authorization": f"Bearer {token}x"},
            {"Authorization": f"Bearer {token[:-1]}"},
            {"Authorization": "Bearer "},
        ):
            for path in "/indexes", "/metrics", "/indexes/base", "/none":
                self.assertEqual(server.refused(path, headers=headers)[0], 401, headers)
        status, headers, _ = server.ask("/indexes/base/search", {"queries": []})
        self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"))
        right = {"Authorization": f"Bearer {token}", "Host": "example.org"}
        self.assertEqual(server.ask("/indexes", headers=right)[0], 200)
        # Schemes, and types, mean the same in any case.
        self.assertEqual(
            server.ask("/indexes", headers={"Authorization": f"bEARER {token}"})[0], 200
        )
        any_case = {**right, "Content-Type": "Application/Octet-Stream"}
        status, headers, _ = server.ask(
            "/indexes/base/search", binary_search(self.queries, 3), any_case
        )
        self.assertEqual((status, headers["Content-Type"]), (200, "application/octet-stream"))
        self.assertEqual(server.ask("/indexes/base/search", {"queries": []}, right)[0], 200)


class Shared(Served):
    """One request does not hold up those of others."""

    def write_large(self, name="large", rows=40000, dim=64, index="Flat"):
        with open(self.path(f"{name}.u8bin"), "wb") as file:
            file.write(struct.pack("<II", rows, dim) + random.Random(3).randbytes(rows * dim))
        self.ok("build", "--base", f"{name}.u8bin", "--index", index, "--out", f"{name}.knear")

    def wait_for(self, server, figure, value):
        while server.figure(figure) < value:
            time.sleep(0.01)

    def patient_search(self, server, name, body):
        """The answer, however long a calibration takes that it needs."""
        while True:
            status, _, content = server.ask(f"/indexes/{name}/search", body)
            if status != 503:
                self.assertEqual(status, 200, content)
                return json.loads(content)
            self.assertIn(b"is being calibrated", content)

    def wait_for_last_search(self, server, name, key, value):
        """It is told of a moment after its answer."""
        for _ in range(400):
            last = server.json(f"/indexes/{name}")["last_search"]
            if last and last[key] == value:
                return
            time.sleep(0.05)
        self.assertEqual(last[key], value)

    def test_recall_is_calibrated_once_for_a_range_of_k(self):
        words = ["--base", "base.fvecs", "--index", "IVF8,Flat"]
        self.ok("build", *words, "--out", "lists.knear")
        server = self.server("lists.knear")
        found = {}
        for k, calibrations in ((10, 1), (9, 1), (10, 1), (5, 2), (5, 2), (11, 3), (12, 3)):
            body = {"queries": self.queries, "k": k, "recall": 0.9}
            found[k] = self.patient_search(server, "lists", body)
            self.assertEqual(server.figure("knear_calibrations_total"), calibrations, k)
        for few, many in ((9, 10), (11, 12)):
            for name in "ids", "distances":
                self.assertEqual(found[few][name], [row[:few] for row in found[many][name]])
        self.wait_for_last_search(server, "lists", "k", 12)
        self.assertEqual(server.end(), (0, "", ""))
        # One that an index was tuned for is not made again, nor for another k.
        self.ok("build", *words, "--out", "tuned.knear")
        self.ok("tune", "--index", "tuned.knear", "-k", "9")
        server = self.server("tuned.knear")
        body = {"queries": self.queries, "k": 9, "recall": 0.9}
        self.assertEqual(server.ask("/indexes/tuned/search", body)[0], 200)
        self.assertEqual(server.figure("knear_calibrations_total"), 0)

        server.end()
        # One that asks for more than can be promised is refused by itself.
        self.ok("build", "--base", "base.fvecs", "--index", "PQ2", "--out", "codes.knear")
        server = self.server("codes.knear")
        for recall, status in ((0.999, 400), (0.01, 200), (0.999, 400)):
            body = {"queries": self.queries, "k": 9, "recall": recall}
            found = server.ask("/indexes/codes/search", body)
            self.assertEqual(found[0], status, found[2])
            self.assertEqual(server.figure("knear_calibrations_total"), 1)

    def test_recall_is_measured_by_audits(self):
        self.write_large(rows=5000, dim=8, index="IVF16,Flat")
        self.ok("tune", "--index", "large.knear", "-k", "5")
        server = self.server("large.knear")
        random_ = random.Random(7)
        body = {"k": 5, "recall": 0.9, "traffic": 'the "new" ones'}
        for _ in range(20):
            body["queries"] = [[random_.randrange(-300, 600) for _ in range(8)] for _ in range(16)]
            self.patient_search(server, "large", body)
        self.wait_for(server, "knear_audited_queries", 256)
        (told,) = server.json("/indexes/large")["audits"]
        self.assertEqual((told["traffic"], told["k"], told["recall"]), ('the "new" ones', 5, 0.9))
        self.assertGreaterEqual(told["served_queries"], 320)
        self.assertGreaterEqual(told["audited_queries"], 256)
        self.assertTrue(0 < told["low"] <= told["measured_recall"] <= told["high"] <= 1, told)
        self.assertGreaterEqual(told["measured_recall"], 0.9)
        figures = server.ask("/metrics")[2].decode()
        labels = r'{index="large",traffic="the \"new\" ones",k="5"} '
        self.assertIn(f"knear_asked_recall{labels}0.9\n", figures)
        self.assertRegex(figures, re.escape(f"knear_measured_recall{labels}") + r"(0\.9|1)")
        for name in "traffic_queries_total", "measured_recall_low", "measured_recall_high":
            self.assertIn(f"knear_{name}{labels}", figures)
        self.assertIn("Recall as measured", server.ask("/")[2].decode())
        # Searches that use the audits now have a promised recall.
        self.patient_search(server, "large", body)
        self.wait_for_last_search(server, "large", "recall_argument", "calibrated")
        # Flat indexes are exact, and audit nothing; a name of more than 64 bytes is refused.
        self.assertEqual(server.json("/indexes/base")["audits"], [])
        long = server.ask("/indexes/large/search", {**body, "traffic": "x" * 65})
        self.assertEqual((long[0], b"at most 64 bytes" in long[2]), (400, True))
        self.assertEqual(server.end(), (0, "", ""))
        server = self.server("large.knear", "--audit", "0")
        refused = server.ask("/indexes/large/search", body)
        self.assertEqual((refused[0], b"but audit is 0" in refused[2]), (400, True), refused)
        self.patient_search(server, "large", {**body, "traffic": None})
        self.assertEqual(server.json("/indexes/large")["audits"], [])

    def test_a_calibration_that_takes_too_long(self):
        self.write_large(rows=20000, index="IVF64,Flat")
        server = self.server("large.knear", "--max-calibration", "0.001")
        for k in 3000, 3001, 3072:
            body = {"queries": [[1] * 64], "k": k, "recall": 0.9}
            status, headers, content = server.ask("/indexes/large/search", body)
            self.assertEqual(status, 503, content)
            self.assertIn(b"recall of 3072 neighbours could not be calibrated in 0.001", content)
            self.assertGreater(int(headers["Retry-After"]), 500)
            body["recall"] = 1
            self.assertEqual(server.ask("/indexes/large/search", body)[0], 200)
        self.assertEqual(server.figure("knear_calibrations_total"), 1)

    def test_a_calibration_holds_up_no_other_search(self):
        self.write_large(index="IVF64,Flat")
        server = self.server("large.knear", "--threads", "1")
        body = {"queries": [[1] * 64], "k": 5000, "recall": 0.95}
        small = {"queries": self.queries[:1], "k": 5}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waits = pool.submit(server.ask, "/indexes/large/search", body)
            self.wait_for(server, "knear_waiting_for_calibration", 1)
            late = server.ask("/indexes/large/search", {**body, "k": 5001, "timeout_ms": 100})
            self.assertEqual(late[0], 504, late[2])
            for _ in range(20):
                self.assertEqual(server.ask("/indexes/base/search", small)[0], 200)
                plain = {"queries": [[1] * 64], "k": 5, "probes": 2}
                self.assertEqual(server.ask("/indexes/large/search", plain)[0], 200)
            self.assertEqual(server.figure("knear_calibrations_total"), 0, "it has ended already")
            # The first signal ends it, and the search that waits for it is answered.
            server.process.send_signal(signal.SIGTERM)
            status, headers, content = waits.result()
            self.assertEqual((status, headers["Retry-After"]), (503, "5"), content)
        out = server.process.communicate(timeout=60)
        self.assertEqual((server.process.returncode, *out), (0, "", ""))

    def test_a_graph_is_made_anew_aside(self):
        self.write_large("graph", rows=3000, dim=16, index="Graph16")
        server = self.server("graph.knear")
        body = {"queries": [[100] * 16], "k": 5, "recall": 0.9}
        at = "/indexes/graph"
        self.patient_search(server, "graph", body)
        self.assertEqual(server.figure("knear_calibrations_total"), 1)
        self.wait_for_last_search(server, "graph", "method", "graph")
        more = [[i % 256] * 16 for i in range(1100)]
        server.json(f"{at}/add", {"vectors": more})
        # All rows are compared until there is another graph.
        wanted = server.json(f"{at}/search", {**body, "recall": 1})
        self.assertEqual(self.patient_search(server, "graph", body)["ids"], wanted["ids"])
        note = "the graph is made aside, so all rows were compared"
        self.wait_for_last_search(server, "graph", "note", note)
        self.wait_for(server, "knear_calibrations_total", 2)
        self.patient_search(server, "graph", body)
        self.assertEqual(server.figure("knear_calibrations_total"), 3)
        self.wait_for_last_search(server, "graph", "method", "graph")
        self.assertEqual(server.end(), (0, "", ""))

    def test_a_large_search_goes_in_parts(self):
        self.write_large()
        source = random.Random(5)
        queries = [[float(source.randrange(256)) for _ in range(64)] for _ in range(8000)]
        server = self.server("large.knear", "--threads", "1", "--memory", "4G")
        path, parts = "/indexes/large/search", "knear_batch_queries_count"
        # 600 x 1,000 neighbours are three parts, whose answers are those of one search.
        status, _, content = server.ask(path, binary_search(queries[:600], 1000), BINARY)
        self.assertEqual((status, server.figure(parts)), (200, 3))
        body = binary_search(queries[599:600], 1000)
        last = server.ask(path, body, BINARY)[2]
        ids, row = 24 + 8 * 599 * 1000, 24 + 8000
        self.assertEqual(content[ids : ids + 8000], last[24:row])
        self.assertEqual(content[ids + 8000 + 4 * 599 * 1000 :][:4000], last[row : row + 4000])
        self.assertEqual(content[-600:], b"\1" * 600)
        # All parts see the rows of the first.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            body = binary_search(queries[:4000], 1000)
            large = pool.submit(server.ask, path, body, BINARY)
            self.wait_for(server, parts, 5)
            added = server.json("/indexes/large/add", {"vectors": queries[3999:4000]})
            self.assertEqual(added, {"ids": [40000]})
            status, _, content = large.result()
        self.assertEqual(status, 200)
        self.assertNotIn(40000, struct.unpack_from("<1000q", content, 24 + 8 * 3999 * 1000))
        body = binary_search(queries[3999:4000], 1)
        content = server.ask(path, body, BINARY)[2]
        self.assertEqual(struct.unpack_from("<q", content, 24), (40000,))
        # 8,000 x 2,000 are 62: its time ends it after some of them, and others are answered
        # meanwhile.
        before = server.figure(parts)
        body = binary_search(queries, 2000, timeout=1500)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            large = pool.submit(server.ask, path, body, BINARY)
            small = {"queries": queries[:1], "k": 5}
            answered = 0
            while not large.done():
                self.assertEqual(server.ask(path, small)[0], 200)
                answered += 1
            self.assertEqual(large.result()[0], 504, large.result()[2][:200])
            self.assertGreater(answered, 1)
        self.all_is_given_back(server)
        self.assertLess(server.figure(parts) - before - answered, 62)
        # So does a client that hangs up.
        before = server.figure(parts)
        body = binary_search(queries, 2000)
        head = f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{server.host.decode()}"
        head += "Content-Type: application/octet-stream\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(head.encode() + body)
            self.wait_for(server, parts, before + 1)
        self.all_is_given_back(server)
        self.assertLess(server.figure(parts) - before, 62)
        self.assertEqual(server.end(), (0, "", ""))

    def test_large_searches_leave_small_ones_a_thread(self):
        server = self.server("--threads", "2")
        path = "/indexes/base/search"

        def threads_of(queries):
            server.json(path, {"queries": (self.queries * queries)[:queries], "k": 3})
            self.wait_for_last_search(server, "base", "queries", queries)
            return server.json("/indexes/base")["last_search"]["threads"]

        self.assertEqual(threads_of(100), 2)
        # A small one may be a second ago on a busy machine.
        self.assertTrue(any((threads_of(1), threads_of(100)) == (2, 1) for _ in range(20)))
        time.sleep(1.1)
        self.assertEqual(threads_of(101), 2)


class Examples(Served):
    def check(self, text):
        """Runs the lines of an example: printf, build, serve and a request of curl."""
        lines = [line.strip() for line in text.splitlines()]
        subprocess.run(["sh", "-c", lines[0]], cwd=self.folder, check=True)
        self.assertTrue(lines[1].startswith("knear build "), lines)
        self.ok(*shlex.split(lines[1])[1:])
        _, serve, *words, port, number = shlex.split(lines[2])
        self.assertEqual((serve, port, number), ("serve", "--port", "8080"))
        program, address, data, body = shlex.split(lines[3])
        self.assertEqual((program, data), ("curl", "-d"))
        path = address.removeprefix("http://127.0.0.1:8080")
        server = Server(self, *words)
        # curl says this type of what -d sends.
        status, _, answer = server.ask(
            path, body, {"Content-Type": "application/x-www-form-urlencoded"}
        )
        self.assertEqual(status, 200, answer)
        self.assertEqual(json.loads(answer)["ids"], [[0, 2]])
        self.assertEqual(server.end()[0], 0)

    def test_first_example_of_the_page(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        self.check((root / "docs/server.md").read_text().split("```sh\n")[1].split("```")[0])

    def test_example_of_the_help(self):
        self.check(
            self.ok("serve", "--help").split("Example, with an index of")[1].split("\n", 1)[1]
        )


class Ends(Served):
    def test_what_was_taken_is_finished(self):
        for how in signal.SIGTERM, signal.SIGINT:
            server = self.server("--threads", "1")
            body = json.dumps({"queries": self.queries * 200, "k": 100}).encode()
            head = (
                b"POST /indexes/base/search HTTP/1.1\r\n"
                + server.host
                + b"Content-Length: %d\r\n\r\n"
            )
            links = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
            idle = socket.create_connection(("127.0.0.1", server.port))
            for link in links:
                link.sendall(head % len(body) + body[:-10])
            while server.figure("knear_reserved_bytes") < 2 * len(body) * len(links):
                time.sleep(0.01)
            begun = socket.create_connection(("127.0.0.1", server.port))
            begun.sendall(b"GET /health HTTP/1.1\r\nHost: ")
            stalled = socket.create_connection(("127.0.0.1", server.port))
            stalled.sendall(b"GET /health")
            self.assertEqual(server.ask("/health")[0], 200)
            server.process.send_signal(how)
            time.sleep(0.3)
            begun.sendall(b"localhost:%d\r\n\r\n" % server.port)
            out = b""
            while block := begun.recv(65536):
                out += block
            self.assertRegex(out, rb"\AHTTP/1\.1 200 (?s:.*)Connection: close")
            begun.close()
            for link in links:  # the rest of what was taken
                link.sendall(body[-10:])
            for link in links:
                out = b""
                while block := link.recv(65536):
                    out += block
                self.assertRegex(out, rb"\AHTTP/1\.1 200 ")
                self.assertIn(b"Connection: close", out)
                self.assertEqual(len(json.loads(out.split(b"\r\n\r\n", 1)[1])["ids"]), 3400)
                link.close()
            self.assertEqual(idle.recv(10), b"")
            idle.close()
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(stalled.recv(10), b"")  # not for as long as --timeout
            stalled.close()
            # No second signal, which would end it at once.
            out = server.process.communicate(timeout=60)
            self.assertEqual((server.process.returncode, *out), (0, "", ""))

    def test_signals(self):
        server = self.server()
        names = "USR1 USR2 XFSZ PIPE ALRM VTALRM PROF IO PWR STKFLT WINCH CHLD URG"
        numbers = [getattr(signal, "SIG" + name) for name in names.split()]
        for each in [*numbers, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)]:
            server.process.send_signal(each)
            self.assertEqual(server.json("/health")["status"], "ok", each)
        self.assertEqual(server.end(signal.SIGHUP), (0, "", ""))
        # One that a terminal has left behind goes on.
        command = [self.program, "serve", "--index", "base.knear", "--port", "0"]
        process = subprocess.Popen(
            ["nohup", *command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertIn(b"serves 1 index", process.stdout.readline())
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 0)

    def test_a_body_that_does_not_come_holds_up_no_end(self):
        server = self.server("--timeout", "600")
        head = b"POST /indexes/base/search HTTP/1.1\r\n" + server.host
        links = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        links[0].sendall(head + b"Content-Length: 100\r\n\r\n")
        links[1].sendall(head + b"Content-Length: 100\r\n\r\n{")
        links[2].sendall(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{ ")
        while server.figure("knear_connections") < 4:  # with the one that asks
            time.sleep(0.01)
        out = server.end()  # within a minute, of the ten of --timeout
        self.assertEqual(out, (0, "", ""))
        for link in links:
            link.close()

    def test_a_file_that_may_not_grow(self):
        server = self.server()
        one = {"vectors": [[1.0] * 12]}
        self.assertEqual(server.json("/indexes/base/add", one)["ids"], [300])
        log = self.file("base.knear.log-1")
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            server.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 20, limits[1])
        )
        status, says = server.refused("/indexes/base/add", one)
        self.assertEqual((status, "File too large" in says), (503, True), says)
        self.assertEqual(server.refused("/indexes/base/checkpoint", "")[0], 503)
        self.assertEqual(server.json("/indexes/base")["rows"], 301)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
        self.assertEqual(server.json("/indexes/base/add", one)["ids"], [301])
        server.kill()
        server = self.server()
        self.assertEqual(server.json("/indexes/base")["rows"], 302)
        self.assertEqual(server.end(), (0, "", ""))

    def test_a_file_that_is_truncated_takes_its_index_alone(self):
        source = random.Random(1)
        rows = [[source.random() for _ in range(64)] for _ in range(5000)]
        write_vecs(self.path("more.fvecs"), rows, "f")
        kinds = {"flat": ["Flat"], "lists": ["IVF16,Flat"], "parts": ["Flat", "--shards", "2"]}
        for name, words in kinds.items():
            self.ok(
                "build", "--base", "more.fvecs", "--out", f"{name}.knear", "--index", *words
            )  # fmt: skip
        indexes = [f"{name}.knear" for name in kinds]
        server = self.server(*indexes)
        body = {"queries": rows[::50], "k": 3, "recall": 1}
        for name in kinds:
            path = f"/indexes/{name}"
            found = server.json(path + "/search", body)
            self.assertEqual([row[0] for row in found["ids"]], list(range(0, 5000, 50)))
            server.json(path + "/add", {"vectors": [[9.0] * 64]})
        before = self.file("flat.knear.log-1").read_bytes()
        for name in kinds:
            file = self.file(f"{name}.knear")
            if name == "parts":
                file = min(self.file(".").glob("parts.knear.*.shard"))
            os.truncate(file, 4096)
            for _ in range(2):
                status, says = server.refused(f"/indexes/{name}/search", body)
                self.assertEqual(status, 503, says)
                self.assertIn(f"{file.name}' was truncated while it was in use", says)
            # Nothing is made of rows that are lost.
            one = {"vectors": [[1.0] * 64]}
            changes = (("add", one), ("add", {**one, "ids": [7778]}), ("add", {**one, "ids": [1]}))
            for path, more in (*changes, ("checkpoint", {})):
                status, says = server.refused(f"/indexes/{name}/{path}", more)
                self.assertEqual((status, "was truncated" in says), (503, True), says)
            if name != "parts":  # whose manifest is whole
                self.assertEqual(server.refused(f"/indexes/{name}/reload", "")[0], 503)
        self.assertEqual(self.file("flat.knear.log-1").read_bytes(), before)
        self.assertFalse(self.file("flat.knear.log-2").exists())
        self.assertEqual(
            server.json("/indexes/base/search", {"queries": self.queries, "k": 5})["ids"],
            brute_force(self.queries, self.base, 5)[0],
        )
        self.assertEqual(server.json("/health")["status"], "ok")
        self.assertEqual(server.figure("knear_internal_errors_total"), 0)
        status, out, errors = server.end()
        self.assertEqual((status, out), (0, ""))
        lines = errors.splitlines()
        self.assertEqual(len(lines), 3, errors)
        for name, line in zip(kinds, lines, strict=True):
            self.assertRegex(line, rf"\Aknear: '.*{name}\.knear.*' was truncated .* answered 503\Z")

    def test_reload(self):
        server = self.server()
        self.assertEqual(server.json("/indexes/base/reload", ""), {"reloaded": False, "rows": 300})
        write_vecs(self.path("few.fvecs"), self.base[:50], "f")
        stop, failed = threading.Event(), []

        def ask():
            while not stop.is_set():
                status, _, content = server.ask("/indexes/base/search", {"queries": self.queries})
                if status != 200:
                    failed.append(content)

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for each in callers:
            each.start()
        try:
            for name in ("few", "base", "few"):
                self.ok(
                    "build", "--base", f"{name}.fvecs", "--index", "Flat", "--out", "base.knear"
                )
                rows = 50 if name == "few" else 300
                self.assertEqual(
                    server.json("/indexes/base/reload", "{}"), {"reloaded": True, "rows": rows}
                )
        finally:
            stop.set()
            for each in callers:
                each.join()
        self.assertEqual(failed, [])
        server.json("/indexes/base/add", {"vectors": [[1.0] * 12]})
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "base.knear")
        self.assertEqual(server.refused("/indexes/base/reload", "{}")[0], 409)
        self.assertEqual(server.refused("/indexes/base/checkpoint", "{}")[0], 409)
        self.assertEqual(server.json("/indexes/base")["rows"], 51)
        again = server.json("/indexes/base/reload", {"discard_changes": True})
        self.assertEqual(again, {"reloaded": True, "rows": 300})
        self.assertEqual(server.end(), (0, "", ""))

    def test_a_log_that_another_program_takes_away(self):
        server = self.server()
        add = "/indexes/base/add", {"vectors": [[1.0] * 12]}
        server.json(*add)
        self.file("base.knear.log-1").rename(self.file("rotated"))
        for _ in range(2):
            status, says = server.refused(*add)
            self.assertEqual(status, 503)
            self.assertIn("base.knear.log-1' was removed or renamed by another program", says)
        self.assertEqual(server.json("/indexes/base")["rows"], 301)
        # A checkpoint saves what was answered, and begins another log.
        server.json("/indexes/base/checkpoint", "")
        server.json(*add)
        server.kill()
        server = self.server()
        self.assertEqual(server.json("/indexes/base")["rows"], 302)
        self.assertEqual(server.end(), (0, "", ""))

    def test_data_in_another_folder(self):
        before = self.file("base.knear").read_bytes()
        for rows in range(301, 304):
            server = self.server("--data", "data")
            server.json("/indexes/base/add", {"vectors": [[float(rows)] * 12]})
            if rows == 302:
                server.json("/indexes/base/checkpoint", "")
            self.assertEqual(server.json("/indexes/base")["rows"], rows)
            server.kill()
        self.assertEqual(self.file("base.knear").read_bytes(), before)
        self.assertFalse(self.file("base.knear.lock").exists())
        server = self.server("--read-only")
        self.assertEqual(server.json("/indexes/base")["rows"], 300)
        status, says = server.refused("/indexes/base/remove", {"ids": [1]})
        self.assertEqual((status, "takes no changes" in says), (409, True))
        self.assertFalse(self.file("base.knear.lock").exists())

    def test_files_that_a_server_without_changes_made_go_with_it(self):
        before = sorted(os.listdir(self.folder))
        server = self.server("--data", "new")
        self.assertEqual(server.json("/indexes/base")["rows"], 300)
        self.assertEqual(
            sorted(os.listdir(self.path("new"))), ["base.knear.lock", "base.knear.log-1"]
        )
        self.assertEqual(server.end(), (0, "", ""))
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        server = self.server()
        server.json("/indexes/base/remove", {"ids": [5]})
        self.assertEqual(server.end(), (0, "", ""))
        self.assertEqual(self.server().json("/indexes/base")["rows"], 299)

    def test_changes_of_an_index_in_shards(self):
        words = ["build", "--base", "base.fvecs", "--index", "IVF4,Flat", "--out", "shards.knear"]
        self.ok(*words, "--shards", "2")
        at = "/indexes/shards"
        server = self.server("shards.knear")
        new = [[float(i)] * 12 for i in (700, 800)]
        self.assertEqual(server.json(f"{at}/add", {"vectors": new})["ids"], [300, 301])
        self.assertEqual(server.json(f"{at}/remove", {"ids": [7, 300]})["removed"], 2)
        server.json(f"{at}/checkpoint", {})
        server.json(f"{at}/replace", {"ids": [8], "vectors": new[:1]})
        body = {"queries": new, "k": 1, "probes": 4}
        self.assertEqual(server.json(f"{at}/search", body)["ids"], [[8], [301]])
        server.kill()
        server = self.server("shards.knear")
        self.assertEqual(server.json(f"{at}/search", body)["ids"], [[8], [301]])
        self.assertEqual(server.json(at)["rows"], 300)
        server.json(f"{at}/checkpoint", {})
        server.kill()
        # The file alone has all of it then, as knear search sees it.
        self.assertIn("300", self.ok("info", "shards.knear"))


if __name__ == "__main__":
    main()
