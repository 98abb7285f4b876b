"""knear explore: the server's answers, what it refuses, and the page that is one file.

Tests that need a browser are in tests/page.
"""

import base64
import contextlib
import gzip
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import struct
import threading
import zlib

import server_cases
from program_cases import ProgramTest, brute_force, main, write_idx, write_vecs


def png(width, height):
    """A black picture."""

    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = zlib.compress(bytes((width + 1) * height))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")
    )


# 16 x 8 greys, darker to the left: a JPEG of Pillow.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywt"
    "QFdBRkxOUlNSMj5aYVpQYEpRUk//wAALCAAIABABAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QA"
    "tRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0"
    "NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2"
    "t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/AOT8P/w16d4f/hr/2Q=="
)


class Server(server_cases.Server):
    """A running `knear explore --port 0`."""

    command = "explore"
    says = r"http://127\.0\.0\.1:(\d+)/ shows .*"


class Served(ProgramTest):
    def setUp(self):
        super().setUp()
        self.ok("graph", "--base", "base.bvecs", "-k", "4", "--out", "g.knear")

    def server(self, *words):
        return Server(self, "--base", "base.bvecs", *words)

    def test_paths_are_those_of_the_command(self):
        server = self.server("--graph", "g.knear")
        for a, b in (0, 299), (17, 4), (5, 5), (299, 0), (120, 121):
            words = ["path", "--graph", "g.knear", "--base", "base.bvecs"]
            wanted = json.loads(self.ok(*words, "--from", a, "--to", b, "--json"))
            found = server.json(f"/api/path?from={a}&to={b}")
            for key in ("path", "connected", "largest_step", "sum_of_steps"):
                self.assertEqual(found[key], wanted[key], (a, b, key))
            self.assertEqual(sum(found["steps"]), found["sum_of_steps"] or 0)
            self.assertEqual(max(found["steps"], default=0), found["largest_step"] or 0)
        self.assertEqual(server.end(), (0, "", ""), "Ctrl-C is how a server ends")

    def test_gaps_are_those_of_the_command(self):
        # Four clusters on a line, so that the way from the first to the last crosses three gaps; of
        # products the clusters are others.
        rows = [
            [part + 0.01 * i, float(i % 3), 1.0]
            for part in (0.0, 9.0, 30.0, 45.0)
            for i in range(8)
        ]
        write_vecs(self.path("parts.fvecs"), rows, "f")
        for metric, ends in ("l2", [(0, 31), (31, 8), (17, 9), (3, 4), (5, 5)]), ("ip", [(0, 31)]):
            words = ["--base", "parts.fvecs", "--metric", metric, "-k", "3", "--out", "p.knear"]
            self.ok("graph", *words)
            server = Server(self, "--base", "parts.fvecs", "--graph", "p.knear")
            most = 0
            for a, b in ends:
                words = ["path", "--graph", "p.knear", "--base", "parts.fvecs", "--json"]
                wanted = json.loads(self.ok(*words, "--from", a, "--to", b))
                found = server.json(f"/api/path?from={a}&to={b}")
                self.assertEqual("gap_seconds" in found, not wanted["connected"])
                gaps = server.json(f"/api/gap?from={a}&to={b}")["gaps"]
                self.assertEqual(
                    [[gap[key] for key in ("from", "to", "distance")] for gap in gaps],
                    [[gap[key] for key in ("from", "to", "distance")] for gap in wanted["gaps"]],
                )
                most = max(most, len(gaps))
            if metric == "l2":
                self.assertEqual(most, 3)
                self.assertEqual(found["connected"], True)
                # Once they are known, they are told at once.
                self.assertEqual(server.json("/api/path?from=0&to=31")["gap_seconds"], 0)
            self.assertEqual(server.refused("/api/gap?from=0&to=32")[0], 404)
            self.assertEqual(server.refused("/api/gap?from=0")[0], 400)
            server.end()

    def test_a_base_that_is_truncated_ends_it_with_a_line(self):
        rows, dim = 3000, 16
        with open(self.path("big.fbin"), "wb") as file:
            file.write(struct.pack("<II", rows, dim))
            for i in range(rows):
                file.write(struct.pack(f"<{dim}f", *(float((i * j) % 101) for j in range(dim))))
        server = Server(self, "--base", "big.fbin", "-k", "3")
        numbers = server.json("/api/item/2999")["numbers"]
        self.assertEqual(numbers, [(2999 * j) % 101 for j in range(dim)])
        os.truncate(self.path("big.fbin"), 4096)
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            server.ask("/api/item/2998")
        self.assertEqual(server.process.wait(timeout=60), 1)
        self.assertRegex(
            server.process.stderr.read(),
            r"\Aknear: cannot read 'big.fbin' from byte \d+ on: it was truncated while it was in "
            r"use, or its disk failed\n\Z",
        )

    def test_items_and_searches(self):
        server = self.server("-k", "4")  # no graph: it is made
        near = brute_force(self.base, self.base, 12)
        for i in 0, 77, 299:
            item = server.json(f"/api/item/{i}")
            wanted = [j for j in near[0][i] if j != i][:4]
            self.assertEqual([n["id"] for n in item["neighbors"]], wanted)
            self.assertEqual(item["numbers"], self.base[i])
        for i in 0, 5:
            ids, distances = brute_force(self.queries[i : i + 1], self.base, 7)
            body = json.dumps({"vector": self.queries[i], "k": 7})
            found = server.json("/api/search", body)["neighbors"]
            self.assertEqual([n["id"] for n in found], ids[0])
            self.assertEqual([n["distance"] for n in found], distances[0])
        info = server.json("/api/info")
        self.assertEqual(
            (info["rows"], info["dim"], info["k"], info["kind"]), (300, 12, 4, "vectors")
        )
        self.assertEqual(len(server.ask("/api/places")[2]), 300 * 8)

    def test_an_index_is_explored_by_its_own_vectors(self):
        self.ok("build", "--base", "base.fvecs", "--index", "IVF8,Flat", "--out", "i.knear")
        server = Server(self, "--index", "i.knear", "-k", "4")
        ids, _ = brute_force(self.queries[:1], self.base, 5)
        body = json.dumps({"vector": self.queries[0], "k": 5})
        self.assertEqual([n["id"] for n in server.json("/api/search", body)["neighbors"]], ids[0])
        self.ok("build", "--base", "base.fvecs", "--index", "PQ4x4", "--out", "c.knear")
        self.fails(1, "explore", "--index", "c.knear", "--port", "0", says="codes alone")

    def test_labels(self):
        lines = [f"Zeile {i} <b>ü</b>" for i in range(300)]
        self.file("labels.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        server = self.server("--labels", "labels.txt")
        self.assertEqual(server.json("/api/item/17")["label"], lines[17])
        self.assertEqual(
            [f["id"] for f in server.json("/api/find?text=ZEILE%20299")["found"]], [299]
        )
        self.assertEqual(server.json("/api/info")["kind"], "texts")
        self.assertTrue(server.json("/api/find?text=zeile")["more"])
        server.end()
        write_idx(self.path("classes.gz"), [i % 3 for i in range(300)], [300])
        server = self.server("--labels", "classes.gz", "--names", "a,b,c")
        self.assertEqual(server.json("/api/info")["classes"], ["a", "b", "c"])
        self.assertEqual(server.json("/api/item/5")["label"], "c")
        classes = struct.unpack("<300H", server.ask("/api/classes")[2])
        self.assertEqual(list(classes), [i % 3 for i in range(300)])

    def test_pictures(self):
        write_idx(self.path("p.gz"), [i % 251 for i in range(20 * 6)], [20, 2, 3])
        server = Server(self, "--base", "p.gz", "-k", "3")
        info = server.json("/api/info")
        self.assertEqual((info["kind"], info["width"], info["height"]), ("pixels", 3, 2))
        self.assertEqual(server.ask("/api/picture/7")[2][16:24], struct.pack(">II", 3, 2))
        server.end()
        os.mkdir(self.path("images"))
        write_vecs(self.path("few.fvecs"), [[float(i), 1.0] for i in range(5)], "f")
        for i in range(5):
            self.file(f"images/{i}.png").write_bytes(png(4 + i, 4))
        words = ["--base", "few.fvecs", "-k", "2", "--images", "images"]
        result = self.run_program("explore", *words, "--html", "x.html")
        if "KNEAR_EXPLORE is off" in result.stderr:
            self.skipTest("this build decodes no pictures")
        server = Server(self, *words)
        self.assertEqual(server.ask("/api/picture/3")[2], png(7, 4))
        self.assertEqual(server.json("/api/item/3")["file"], "3.png")
        self.assertEqual(server.json("/api/info")["width"], 0)
        # Rows that are these pictures in grey, so that others can be dropped in.
        server = Server(self, *words, "--shape", "2x1")
        info = server.json("/api/info")
        self.assertEqual((info["kind"], info["width"], info["height"]), ("images", 2, 1))
        self.assertEqual(server.ask("/api/picture/3")[2], png(7, 4))
        self.fails(1, "explore", *words, "--port", "0", "--shape", "3x1", says="--shape 3x1")
        # In the order of the bytes of their names, whatever they are: 10 comes before 2.
        for name in ("0", "1", "2", "3", "4"):
            self.file(f"images/{name}.png").unlink()
        files = {
            "10.jpg": JPEG,
            "2.PNG": png(5, 5),
            "3.jpeg": JPEG,
            "B.png": png(6, 5),
            "a.png": png(7, 5),
        }
        for name, content in files.items():
            self.file(f"images/{name}").write_bytes(content)
        self.file("images/notes.txt").write_text("no picture")
        server = Server(self, *words)
        for i, (name, content) in enumerate(files.items()):
            self.assertEqual(server.json(f"/api/item/{i}")["file"], name)
            status, headers, body = server.ask(f"/api/picture/{i}")
            self.assertEqual((status, body), (200, content))
            kind = "image/jpeg" if content == JPEG else "image/png"
            self.assertEqual(headers["Content-Type"], kind)
        # One that is changed meanwhile.
        self.file("images/2.PNG").write_bytes(b"words")
        self.assertEqual(server.ask("/api/picture/1")[0], 500)
        self.assertEqual(server.ask("/api/picture/2")[0], 200)
        server.end()
        self.file("images/2.PNG").write_bytes(png(5, 5))
        self.ok("explore", *words, "--html", "x.html")
        page = self.file("x.html").read_text()
        for content in files.values():
            self.assertIn(base64.b64encode(content).decode(), page)
        for name in files:
            self.file(f"images/{name}").unlink()
        for i in range(5):
            self.file(f"images/{i}.png").write_bytes(png(4 + i, 4))
        self.file("images/4.png").unlink()
        os.mkfifo(self.file("images/4.png"))  # is not waited for
        self.fails(1, "explore", *words, "--port", "0", says="4.png' is not a regular file")
        self.file("images/4.png").unlink()
        self.file("images/4.png").symlink_to("nowhere")
        self.fails(1, "explore", *words, "--port", "0", says="4.png' is not a regular file")
        self.file("images/4.png").unlink()
        self.file("images/4.png").write_bytes(png(8, 4))
        missing = [*words[:-1], "none"]
        self.fails(1, "explore", *missing, "--port", "0", says="none")
        for content in (JPEG[:-60], png(8, 4)[:-30], b"words", b"\xff\xd8\xff\xe0words", b""):
            self.file("images/2.png").write_bytes(content)
            self.fails(1, "explore", *words, "--port", "0", says="images/2.png")
        self.file("images/2.png").unlink()
        os.mkdir(self.path("images/2.png"))
        self.fails(
            1, "explore", *words, "--port", "0", says="4 PNG and JPEG files, but the base has 5"
        )

    def test_requests_that_are_refused(self):
        server = self.server("--graph", "g.knear")
        for path, status, says in (
            ("/api/item/300", 404, "item is row 300, but the base has 300 rows"),
            ("/api/item/99999999999999999999", 404, "nothing of this name"),
            ("/api/item/-1", 404, "nothing of this name"),
            ("/api/path?from=0&to=300", 404, "to is row 300, but the base has 300 rows"),
            ("/api/path?from=0&to=-1", 404, "to is row -1"),
            ("/api/path?from=0", 400, "to needs a whole number"),
            ("/api/path?from=1.5&to=2", 400, "from needs a whole number, but got '1.5'"),
            ("/api/path?from=1&from=2&to=3", 400, "from is there twice"),
            ("/api/path?from=1&to=2&metric=ip", 400, "'metric' is not known here; there are from"),
            ("/api/item/3?k=2", 400, "'k' is not known here; there are no parameters"),
            ("/api/picture/1", 404, "no pictures"),
            ("/../../etc/passwd", 404, "nothing of this name"),
            ("/%2e%2e/%2e%2e/etc/passwd", 404, "nothing of this name"),
        ):
            found = server.refused(path)
            self.assertEqual(found[0], status, path)
            self.assertIn(says, found[1])
        for body, says in (
            ("", "JSON object"),
            ("[1, 2", "JSON object"),
            ("[" * 100000, "JSON object"),
            ('{"vector": 3}', "JSON object"),
            ('{"vector": [1, "a"]}', "vector has no number at place 1"),
            ('{"vector": [1, 2]}', "vector has 2 numbers, base has 12"),
            (json.dumps({"vector": [1e39] * 12}), "finite"),
            (json.dumps({"vector": [1e30] * 12}), "vector to row 0 is beyond float32"),
            (json.dumps({"vector": [1] * 12, "q": 1}), "the key 'q' is not known"),
            ('{"k": 2, "vector": [1], "k": 3}', "the key 'k' is there twice"),
            (json.dumps({"vector": [1] * 12, "k": 0}), "k must be"),
            (json.dumps({"vector": [1] * 12, "k": 10**30}), "k must be"),
            (b"\xff\xfe\x00", "JSON object"),
        ):
            found = server.refused("/api/search", body)
            self.assertEqual(found[0], 400, body[:40])
            self.assertIn(says, found[1])
        large = b"x" * (4 * 2**20 + 1)
        self.assertEqual(server.refused("/api/search", large)[0], 413)
        for host in "example.org", f"example.org:{server.port}":
            self.assertEqual(server.refused("/api/info", headers={"Host": host})[0], 403)
        for headers, status in (
            ({"Content-Encoding": "gzip"}, 415),
            ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ):
            self.assertEqual(server.refused("/api/search", b"x", headers)[0], status)
        # The content type of curl -d.
        body = json.dumps({"vector": [1] * 12}) + " " * 100000
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        for headers in {}, form:
            found = server.json("/api/search", body, headers=headers)
            self.assertEqual(len(found["neighbors"]), 10)
        # An answer of as many ranges as a header has room for would be thousands of times as long.
        for ranges in "bytes=0-", "bytes=" + ",".join(["0-"] * 2000):
            status, _, whole = server.ask("/api/places", headers={"Range": ranges})
            self.assertEqual((status, len(whole)), (200, 300 * 8))
        self.assertEqual(server.refused("/api/info", method="DELETE")[0], 405)
        for host in f"localhost:{server.port}", "localhost", "127.0.0.1:1":  # as behind a tunnel
            self.assertEqual(server.ask("/", headers={"Host": host})[0], 200, host)
        self.assertEqual(server.json("/api/item/0")["id"], 0, "it still answers")

    def test_signals(self):
        server = self.server("--graph", "g.knear")
        for each in signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN, signal.SIGRTMAX:
            server.process.send_signal(each)
            self.assertEqual(server.json("/api/item/0")["id"], 0, each)

    def test_bytes_that_are_no_request(self):
        server = self.server("--graph", "g.knear")
        host = b"Host: 127.0.0.1:%d\r\n" % server.port
        for data, status in (
            (b"GET / HTTP/1.1\r\n\r\n", b"400"),
            (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n" + host + b"\r\n", b"414"),
            (b"POST /api/search HTTP/1.1\r\n" + host + b"Content-Length: -5\r\n\r\n", b"400"),
            (
                b"POST /api/search HTTP/1.1\r\n" + host + b"Content-Length: 9999999999\r\n\r\n",
                b"413",
            ),
            (
                b"POST /api/search HTTP/1.1\r\n"
                + host
                + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\nxx",
                b"413",
            ),
            (b"GET /api/info HTTP/1.1\r\n" + host + host + b"\r\n", b"400"),
        ):
            answer = server.raw(data, end=False)
            self.assertRegex(answer, rb"\AHTTP/1\.1 " + status + rb" ", data[:60])
        for data in (
            b"",
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            bytes(range(256)) * 64,
            b"GET / HTT",
            b"POST /api/search HTTP/1.1\r\n" + host + b"Content-Length: 50\r\n\r\n{",
        ):
            # Cut off, or no HTTP at all: refused, or the connection is closed.
            self.assertRegex(server.raw(data), rb"\A(HTTP/1\.1 4\d\d |\Z)", data[:60])
        self.assertEqual(server.json("/api/item/0")["id"], 0, "it still answers")
        self.assertEqual(server.end(), (0, "", ""))

    def test_requests_sent_in_part_hold_up_no_other(self):
        server = self.server("--graph", "g.knear")
        half = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        for one in half:
            one.sendall(b"GET / HTT")
        # They go on, byte by byte, so that none of them ends by being slow.
        done = threading.Event()

        def go_on():
            while not done.wait(0.3):
                for one in half:
                    with contextlib.suppress(OSError):
                        one.sendall(b"x")

        writer = threading.Thread(target=go_on)
        writer.start()
        self.addCleanup(writer.join)
        self.addCleanup(done.set)
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        link.request("GET", "/api/item/0")
        self.assertEqual(json.loads(link.getresponse().read())["id"], 0)
        done.set()
        writer.join()
        for one in half:
            one.close()
        link.close()

    def test_only_this_machine_is_answered(self):
        server = self.server("--graph", "g.knear")
        listening = pathlib.Path("/proc/net/tcp").read_text()
        wanted = f"0100007F:{server.port:04X} "
        self.assertIn(wanted, listening)
        self.assertNotIn(f"00000000:{server.port:04X} ", listening)
        _, headers, _ = server.ask("/")
        self.assertIn("default-src 'self'", headers["Content-Security-Policy"])

    def test_a_port_that_is_taken(self):
        server = self.server("--graph", "g.knear")
        words = ["explore", "--base", "base.bvecs", "--graph", "g.knear", "--port"]
        self.fails(1, *words, server.port, says=f"--port {server.port} of 127.0.0.1 is taken")
        self.fails(
            1, *words, "65536", says="--port must be between 0 (any) and 65535, but is 65536"
        )


class Refused(ProgramTest):
    def test_words(self):
        base = ["explore", "--base", "base.bvecs"]
        self.fails(2, *base, says="one of --port and --html")
        self.fails(2, *base, "--port", "0", "--html", "x.html", says="one of --port and --html")
        self.fails(2, "explore", "--port", "0", says="one of --base and --index")
        self.fails(2, *base, "--graph", "g", "-k", "3", "--port", "0", says="-k, --metric")
        self.fails(1, *base, "--html", "x.txt", says="--html must end in .html")
        self.fails(1, *base, "--html", "x.html", "-k", "0", says="-k must be at least 1")
        self.fails(
            1, *base, "--html", "x.html", "--epochs", 99999999999, says="--epochs must be between 0"
        )
        self.fails(1, *base, "--html", "x.html", "--from", "300", says="--from is row 300")
        self.fails(1, *base, "--html", "x.html", "--shape", "3x5", says="--shape 3x5")
        self.fails(2, *base, "--html", "x.html", "--shape", "12", says="--shape needs")
        self.fails(2, *base, "--html", "x.html", "--names", "a", says="--names is for")

    def test_graphs(self):
        self.ok("graph", "--base", "base.bvecs", "-k", "4", "--out", "g.knear")
        words = ["explore", "--graph", "g.knear", "--html", "x.html", "--base"]
        self.fails(1, *words, "queries.bvecs", says="g.knear is the graph of 300 x 12 u8, but")
        other = [list(row) for row in self.base]
        other[7][3] += 1
        write_vecs(self.path("other.bvecs"), other, "B")
        self.fails(1, *words, "other.bvecs", says="g.knear")
        whole = self.file("g.knear").read_bytes()
        for damaged in whole[:-9], whole[:100], b"", whole[:5000] + b"\x55" + whole[5001:]:
            self.file("g.knear").write_bytes(damaged)
            self.fails(1, *words, "base.bvecs", says="g.knear")

    def test_labels(self):
        words = ["explore", "--base", "base.bvecs", "--html", "x.html", "--labels", "l.txt"]
        for content, says in (
            ("a\n" * 299, "l.txt has 299 labels in 598 bytes, but the base has 300 rows"),
            ("a\n" * 301, "l.txt has 301 labels in 602 bytes"),
            ("", "l.txt has 0 labels in 0 bytes"),
            ("a\n" * 299 + "\udcff", "'l.txt' line 300 is no UTF-8"),
        ):
            self.file("l.txt").write_text(content, errors="surrogateescape")
            self.fails(1, *words, says=says)
        self.file("l.txt").write_bytes(b"\0\0\x08\x01" + struct.pack(">i", 300) + bytes(299))
        self.fails(1, *words, says="'l.txt' announces 300 labels, but holds 299 bytes behind its")
        # A pipe says what came of it: its writer may have failed.
        for content, says in (
            (b"a\n" * 7, " (a pipe) has 7 labels in 14 bytes, but the base has 300 rows"),
            (b"", " (a pipe) has 0 labels in 0 bytes, but the base has 300 rows"),
        ):
            with self.pipe(content) as (name, options):
                self.fails(1, *words[:-1], name, says=name + says, **options)
        self.file("l.txt").write_bytes(b"\0\0\x08\x01" + struct.pack(">i", 300) + bytes([2]) * 300)
        self.fails(
            1, *words, "--names", "a,b", says="--names has 2 names, but row 0 has the label 2"
        )
        self.fails(1, *words[:-1], "none.txt", says="'none.txt': No such file or directory")
        self.fails(1, *words[:-1], ".", says="'.': is a directory")
        whole = gzip.compress(b"a\n" * 300)
        self.file("l.txt.gz").write_bytes(whole[:-5])
        self.fails(1, *words[:-1], "l.txt.gz", says="l.txt.gz")

    def test_a_page_that_is_too_large(self):
        with open(self.path("big.u8bin"), "wb") as file:
            file.write(struct.pack("<II", 70000, 1000))
            file.truncate(8 + 70000 * 1000)
        # Copies of one row; the graph is not what is looked at.
        self.fails(
            1,
            "explore",
            "--base",
            "big.u8bin",
            "-k",
            "1",
            "--html",
            "x.html",
            says="at most 64.0 MiB",
        )


class SinglePage(ProgramTest):
    def test_it_holds_graph_and_items(self):
        lines = [f"</script><script>alert({i})</script>" for i in range(300)]
        self.file("l.txt").write_text("\n".join(lines))
        words = ["explore", "--base", "base.bvecs", "-k", "4", "--labels", "l.txt"]
        self.assertIn("x.html", self.ok(*words, "--html", "x.html"))
        page = self.file("x.html").read_text()
        blocks = dict(
            re.findall(r'<script type="[^"]*" id="data-(\w+)">(.*?)</script>', page, re.S)
        )
        self.assertEqual(json.loads(blocks["labels"]), lines)
        ids = struct.unpack("<1200i", base64.b64decode(blocks["ids"]))
        near = brute_force(self.base, self.base, 5)[0]
        for i in range(300):
            self.assertEqual(list(ids[4 * i : 4 * i + 4]), [j for j in near[i] if j != i][:4])
        self.assertEqual(list(base64.b64decode(blocks["vectors"])), sum(self.base, []))
        self.assertNotRegex(page, r'(src|href)="(?!data:|#)')
        self.assertNotIn("<script>alert", page)
        self.ok(*words, "--html", "y.html", "--threads", "1")
        self.assertEqual(self.file("y.html").read_bytes(), self.file("x.html").read_bytes())


if __name__ == "__main__":
    main()
