"""Malformed and ambiguous requests, and those of other sites, to `knear serve` and `knear explore`.

Each shape of REFUSED has a second request behind it, as a smuggler would send it. The answer must
have the status in the table, the connection must be closed, and no second answer may come.
"""

import concurrent.futures
import contextlib
import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import time

import explore_test
import serve_test
from program_cases import ProgramTest, main, not_sanitised

# <HOST>, <PORT>, <GET>, <POST> and <BODY> stand for what the server under test has: its address, a
# path that answers GET, one that answers POST, and a body for that.
SECOND = b"GET <GET> HTTP/1.1\r\nHost: <HOST>\r\n\r\n"


def get(fields=b"", target=b"<GET>", after=SECOND, method=b"GET", host=b"Host: <HOST>\r\n"):
    return method + b" " + target + b" HTTP/1.1\r\n" + host + fields + b"\r\n" + after


def post(fields, after=SECOND):
    return b"POST <POST> HTTP/1.1\r\nHost: <HOST>\r\n" + fields + b"\r\n" + after


def coding(value, after=b"0\r\n\r\n" + SECOND):
    return post(b"Transfer-Encoding:" + value + b"\r\n", after)


def chunks(data):
    return coding(b" chunked", data + SECOND)


def length(value):
    """The second request is the body, or a part of it, for whoever reads the length otherwise."""
    return post(b"Content-Length:" + value + b"\r\n")


def with_body(fields):
    return post(fields + b"Content-Length: <LENGTH>\r\n", b"<BODY>" + SECOND)


REFUSED = [
    # RFC 9112, 6.1 and 6.3: only `chunked`, once, and no length beside it.
    ("coding xchunked", 400, coding(b" xchunked")),
    ("coding identity", 400, coding(b" identity")),
    ("coding gzip", 400, coding(b" gzip")),
    ("no coding", 400, coding(b"")),
    ("a coding of blanks", 400, coding(b" \t ")),
    ("coding chunked twice", 400, coding(b" chunked, chunked")),
    ("coding identity last", 400, coding(b" chunked, identity")),
    ("coding identity first", 400, coding(b" identity, chunked")),
    ("coding gzip first", 400, coding(b" gzip, chunked")),
    ("coding in quotes", 400, coding(b' "chunked"')),
    ("coding with a parameter", 400, coding(b" chunked;q=1")),
    ("coding behind a comma", 400, coding(b" ,chunked")),
    ("coding before a comma", 400, coding(b" chunked,")),
    ("coding behind a vertical tab", 400, coding(b" \x0bchunked")),
    ("coding cut short", 400, coding(b" chunke")),
    ("two fields of the coding", 400, coding(b" chunked\r\nTransfer-Encoding: chunked")),
    ("two fields of two codings", 400, coding(b" chunked\r\ntransfer-encoding: identity")),
    ("a second field that is empty", 400, coding(b" chunked\r\nTransfer-Encoding:")),
    ("coding of a GET", 400, get(b"Transfer-Encoding: identity\r\n")),
    ("coding and then length", 400, coding(b" chunked\r\nContent-Length: 5")),
    ("length and then coding", 400, length(b" 5\r\nTransfer-Encoding: chunked")),
    ("length and coding identity", 400, length(b" 5\r\nTransfer-Encoding: identity")),
    ("length 0 and coding", 400, length(b" 0\r\nTransfer-Encoding: chunked")),
    (
        "coding of HTTP/1.0",
        400,
        coding(b" chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    ),
    # The length: digits, in one field.
    ("the same length twice", 400, length(b" 5\r\nContent-Length: 5")),
    ("two lengths", 400, length(b" 0\r\nContent-Length: 5")),
    ("two lengths, the second empty", 400, length(b" 0\r\nContent-Length:")),
    ("a list of a length", 400, length(b" 5, 5")),
    ("a list of lengths", 400, length(b" 0, 5")),
    ("a length before a comma", 400, length(b" 5,")),
    ("a length with plus", 400, length(b" +5")),
    ("a length with minus", 400, length(b" -5")),
    ("minus 0", 400, length(b" -0")),
    ("no length", 400, length(b"")),
    ("a length in two parts", 400, length(b" 5 5")),
    ("a length in hexadecimal", 400, length(b" 0x5")),
    ("a length with a point", 400, length(b" 5.0")),
    ("a length with an exponent", 400, length(b" 1e1")),
    ("a length with an underscore", 400, length(b" 1_0")),
    ("a length of other digits", 400, length(" ٥".encode())),
    ("a length behind a vertical tab", 400, length(b" \x0b5")),
    ("a length beyond 64 bits", 413, length(b" 18446744073709551621")),
    ("a length beyond 63 bits", 413, length(b" 9223372036854775808")),
    # Fields: a name, a colon directly behind it, one line.
    ("blank before the colon of the coding", 400, post(b"Transfer-Encoding : chunked\r\n")),
    ("tab before the colon of the length", 400, post(b"Content-Length\t: 5\r\n")),
    ("blank before the colon", 400, get(b"X : y\r\n")),
    ("blank in a name", 400, get(b"X Y: z\r\n")),
    ("no name", 400, get(b": x\r\n")),
    ("no colon", 400, get(b"Content-Length\r\n")),
    ("a name with a parenthesis", 400, get(b"X(: y\r\n")),
    ("a name beyond ASCII", 400, get(b"X\xff: y\r\n")),
    ("a folded value", 400, get(b"X: y\r\n z: u\r\n")),
    ("a value folded with a tab", 400, get(b"X: y\r\n\tz\r\n")),
    ("a folded coding", 400, coding(b"\r\n chunked")),
    ("a folded length", 400, length(b"\r\n 5")),
    ("a blank line that is not empty", 400, get(b" \r\n")),
    ("blank before the first field", 400, get(host=b" Host: <HOST>\r\n")),
    ("bare LF after a field", 400, get(b"X: y\nContent-Length: 5\r\n")),
    ("bare LF after the last field", 400, get(b"X: y\n")),
    ("bare LF as the empty line", 400, get(b"X: y\r\n\n", after=b"")),
    ("bare LF in the request line", 400, b"GET <GET> HTTP/1.1\nHost: <HOST>\r\n\r\n" + SECOND),
    ("bare LF everywhere", 400, get().replace(b"\r", b"")),
    ("bare CR in a value", 400, get(b"X: y\rContent-Length: 5\r\n")),
    ("bare CR in a name", 400, get(b"X\r: y\r\n")),
    ("bare CR at the end of a value", 400, get(b"X: y\r\r\n")),
    ("bare CR in the request line", 400, b"GET <GET>\rHTTP/1.1\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("bare CR after the request line", 400, get().replace(b"\r", b"\r\r", 1)),
    ("a zero byte in a value", 400, get(b"X: y\0z\r\n")),
    ("a control character in a value", 400, get(b"X: \x01\r\n")),
    ("a deleted character in a value", 400, get(b"X: \x7f\r\n")),
    # The first line.
    ("two blanks behind the method", 400, b"GET  <GET> HTTP/1.1\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("two blanks behind the target", 400, b"GET <GET>  HTTP/1.1\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("a tab behind the method", 400, b"GET\t<GET> HTTP/1.1\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("blank before the method", 400, b" GET <GET> HTTP/1.1\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("blank behind the version", 400, b"GET <GET> HTTP/1.1 \r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("no version", 400, b"GET <GET>\r\n\r\n" + SECOND),
    ("a version in small letters", 400, b"GET <GET> http/1.1\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("version 2.0", 400, b"GET <GET> HTTP/2.0\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("version 1.10", 400, b"GET <GET> HTTP/1.10\r\nHost: <HOST>\r\n\r\n" + SECOND),
    ("two empty lines first", 400, b"\r\n\r\n" + get()),
    ("a method with a colon", 400, get(method=b"GE:T")),
    ("a control character in the target", 400, get(target=b"/\x01")),
    ("a target beyond ASCII", 400, get(target=b"/\xc3\xa9")),
    ("a target with a fragment", 400, get(target=b"<GET>#x")),
    ("a target without a slash", 400, get(target=b"x")),
    ("a target that is an authority", 400, get(method=b"CONNECT", target=b"<HOST>")),
    ("a percent sign and no digits", 400, get(target=b"/%zz")),
    ("a percent sign and one digit", 400, get(target=b"/%6")),
    ("a zero byte behind a percent sign", 400, get(target=b"/%00")),
    ("another scheme", 400, get(target=b"ftp://<HOST><GET>")),
    ("an address without a host", 400, get(target=b"http:///x")),
    ("an address with a user", 400, get(target=b"http://<HOST>@evil.example<GET>")),
    ("an address of another host", 403, get(target=b"http://evil.example<GET>")),
    ("a long target", 414, get(target=b"/" + b"a" * 20000)),
    ("a long field", 431, get(b"X: " + b"y" * 20000 + b"\r\n")),
    ("many fields", 431, get(b"X: y\r\n" * 4000)),
    # Whom it is for.
    ("no Host", 400, get(host=b"")),
    ("Host twice", 400, get(b"Host: <HOST>\r\n")),
    ("two Hosts", 400, get(b"Host: evil.example\r\n")),
    ("an empty Host", 400, get(host=b"Host:\r\n")),
    ("a Host with a user", 400, get(host=b"Host: localhost:80@evil.example\r\n")),
    ("a user of a local Host", 400, get(host=b"Host: evil.example@<HOST>\r\n")),
    ("a Host with a path", 400, get(host=b"Host: <HOST>/x\r\n")),
    ("a Host with a query", 400, get(host=b"Host: localhost?x\r\n")),
    ("a list of Hosts", 400, get(host=b"Host: <HOST>, evil.example\r\n")),
    ("a Host in two parts", 400, get(host=b"Host: <HOST> evil.example\r\n")),
    ("a Host whose port is none", 400, get(host=b"Host: localhost:abc\r\n")),
    ("a Host whose port is too large", 400, get(host=b"Host: localhost:65536\r\n")),
    ("a Host with two ports", 400, get(host=b"Host: localhost:1:2\r\n")),
    ("a Host with half a bracket", 400, get(host=b"Host: [::1\r\n")),
    ("a Host with words behind the bracket", 400, get(host=b"Host: [::1]evil.example\r\n")),
    ("a Host of another site", 403, get(host=b"Host: evil.example\r\n")),
    ("a Host that begins as a local one", 403, get(host=b"Host: localhost.evil.example\r\n")),
    ("a Host that ends as a local one", 403, get(host=b"Host: evil.localhost\r\n")),
    ("a Host that begins as the address", 403, get(host=b"Host: 127.0.0.1.evil.example\r\n")),
    # From where it comes.
    ("another origin", 403, with_body(b"Origin: http://evil.example\r\n")),
    ("no origin", 403, with_body(b"Origin: null\r\n")),
    ("an empty origin", 403, with_body(b"Origin:\r\n")),
    ("the origin of another port", 403, with_body(b"Origin: http://127.0.0.1:1\r\n")),
    ("another scheme of the origin", 403, with_body(b"Origin: ftp://<HOST>\r\n")),
    ("its own origin in a list", 403, with_body(b"Origin: http://<HOST> http://evil.example\r\n")),
    (
        "a second origin",
        403,
        with_body(b"Origin: http://<HOST>\r\nOrigin: http://evil.example\r\n"),
    ),
    ("its own origin twice", 403, with_body(b"Origin: http://<HOST>\r\norigin: http://<HOST>\r\n")),
    ("another origin of a GET", 403, get(b"Origin: http://evil.example\r\n", after=b"")),
    ("from another site", 403, with_body(b"Sec-Fetch-Site: cross-site\r\n")),
    ("from the same site", 403, with_body(b"Sec-Fetch-Site: same-site\r\n")),
    ("from a site of no known kind", 403, with_body(b"Sec-Fetch-Site: x\r\n")),
    (
        "from two sites",
        403,
        with_body(b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n"),
    ),
    ("a body as a form sends text", 415, with_body(b"Content-Type: text/plain\r\n")),
    ("the same with a charset", 415, with_body(b"Content-Type: Text/Plain; charset=utf-8\r\n")),
    ("a body as a form sends files", 415, with_body(b"Content-Type: multipart/form-data\r\n")),
    ("two types", 415, with_body(b"Content-Type: application/json\r\nContent-Type: x/y\r\n")),
    ("a list of types", 415, with_body(b"Content-Type: text/plain, application/json\r\n")),
    ("a type that begins as JSON", 415, with_body(b"Content-Type: application/jsonp\r\n")),
    # Features that the server lacks.
    ("another expectation", 417, with_body(b"Expect: 200-ok\r\n")),
    ("a body that is packed", 415, with_body(b"Content-Encoding: gzip\r\n")),
    ("a body of a GET", 400, get(b"Content-Length: 5\r\n")),
    ("a body of a HEAD", 400, get(b"Content-Length: 5\r\n", method=b"HEAD")),
    ("chunks of a GET", 400, get(b"Transfer-Encoding: chunked\r\n", after=b"0\r\n\r\n" + SECOND)),
    # Chunks.
    ("a chunk of words", 400, chunks(b"xyz\r\n")),
    ("a chunk of no size", 400, chunks(b"\r\n")),
    ("a chunk of minus 1", 400, chunks(b"-1\r\n\r\n")),
    ("a chunk with plus", 400, chunks(b"+1\r\n{\r\n0\r\n\r\n")),
    ("a chunk with 0x", 400, chunks(b"0x1\r\n{\r\n0\r\n\r\n")),
    ("blank before the size", 400, chunks(b" 1\r\n{\r\n0\r\n\r\n")),
    ("blank behind the size", 400, chunks(b"1 \r\n{\r\n0\r\n\r\n")),
    ("a chunk beyond 64 bits", 400, chunks(b"10000000000000001\r\n{\r\n0\r\n\r\n")),
    ("a chunk beyond the limit", 413, chunks(b"ffffffff\r\n{\r\n0\r\n\r\n")),
    ("bare LF behind the size", 400, chunks(b"1\n{\r\n0\r\n\r\n")),
    ("bare CR behind the size", 400, chunks(b"1\r{\r\n0\r\n\r\n")),
    ("bare LF behind a chunk", 400, chunks(b"1\r\n{\n0\r\n\r\n")),
    ("a chunk longer than its size", 400, chunks(b"1\r\n{}\r\n0\r\n\r\n")),
    ("bare LF in an extension", 400, chunks(b'1;a="\n"\r\n{\r\n0\r\n\r\n')),
    ("bare CR in an extension", 400, chunks(b'1;a="\r"\r\n{\r\n0\r\n\r\n')),
    ("an extension without a name", 400, chunks(b"1;\r\n{\r\n0\r\n\r\n")),
    ("a long extension", 400, chunks(b"1;a=" + b"b" * 20000 + b"\r\n{\r\n0\r\n\r\n")),
    ("many extensions", 400, chunks(b"1;a=bcdefghijklmnopq\r\n \r\n" * 2000 + b"0\r\n\r\n")),
    ("bare LF behind the last chunk", 400, chunks(b"2\r\n{}\r\n0\n\n")),
    ("a length behind the chunks", 400, chunks(b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n")),
    ("a coding behind the chunks", 400, chunks(b"2\r\n{}\r\n0\r\nTransfer-Encoding: x\r\n\r\n")),
    ("bare LF in a field behind the chunks", 400, chunks(b"2\r\n{}\r\n0\r\nX: y\nZ: u\r\n\r\n")),
    ("blank before its colon", 400, chunks(b"2\r\n{}\r\n0\r\nX : y\r\n\r\n")),
]

# Edge cases that are allowed: the answer is 200, and so is that to the request behind it.
TAKEN = [
    ("nothing special", get()),
    ("an empty line first", b"\r\n" + get()),
    ("no blank before a value", get(b"X:y\r\n")),
    ("tabs and blanks around a value", get(b"X: \t y z \t \r\nY:\r\n")),
    ("a value beyond ASCII", get(b"X: \xc3\xa9\xff\r\n")),
    ("a name of any token", get(b"!#$%&'*+-.^_`|~09Az: y\r\n")),
    ("names in any case", b"GET <GET> HTTP/1.1\r\nhOST: <HOST>\r\n\r\n" + SECOND),
    ("the host in capitals", get(host=b"Host: LOCALHOST:<PORT>\r\n")),
    ("a length with zeros before it", post(b"Content-Length: 000<LENGTH>\r\n", b"<BODY>" + SECOND)),
    ("a length of 0 of a GET", get(b"Content-Length: 0\r\n")),
    ("a whole address", get(target=b"http://<HOST><GET>", host=b"Host: <HOST>\r\n")),
    ("a whole address, whatever Host says", get(target=b"HTTP://<HOST><GET>", host=b"Host: x\r\n")),
    ("the coding in capitals", coding(b" Chunked", b"<LENGTH16>\r\n<BODY>\r\n0\r\n\r\n" + SECOND)),
    ("extensions", chunks(b'<LENGTH16>;a=b;c="d \\" e"\r\n<BODY>\r\n00;x\r\n\r\n')),
    ("a field behind the chunks", chunks(b"<LENGTH16>\r\n<BODY>\r\n0\r\nX: y\r\n\r\n")),
    ("its own origin", with_body(b"Origin: http://<HOST>\r\nSec-Fetch-Site: same-origin\r\n")),
    ("by a person", with_body(b"Sec-Fetch-Site: none\r\n")),
    ("a page that is opened from another site", get(b"Sec-Fetch-Site: cross-site\r\n")),
    ("JSON", with_body(b"Content-Type: application/json\r\n")),
    ("JSON, said in full", with_body(b"Content-Type: Application/JSON ; charset=utf-8\r\n")),
    ("no type", with_body(b"")),
    ("as curl sends a body", with_body(b"Content-Type: application/x-www-form-urlencoded\r\n")),
    ("a GET with the type of a body", get(b"Content-Type: text/plain\r\nContent-Type: x\r\n")),
    ("a part of the answer alone", get(b"Range: bytes=0-0\r\n")),
]


class Target:
    """A running server, and what the words of the shapes stand for there."""

    def __init__(self, server, get_path, post_path, body):
        self.server, self.port = server, server.port
        self.get_path, self.post_path = get_path, post_path
        self.body = json.dumps(body).encode()

    def filled(self, data):
        for word, value in (
            (b"<LENGTH16>", b"%x" % len(self.body)),
            (b"<LENGTH>", b"%d" % len(self.body)),
            (b"<BODY>", self.body),
            (b"<GET>", self.get_path),
            (b"<POST>", self.post_path),
            (b"<HOST>", b"localhost:<PORT>"),
            (b"<PORT>", b"%d" % self.port),
        ):
            data = data.replace(word, value)
        return data

    def answer(self, data, one_by_one=False, end=False):
        """What comes back until the server closes the connection; None where it does not."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            out = b""
            try:
                for piece in (data[i : i + 1] for i in range(len(data))) if one_by_one else [data]:
                    link.sendall(piece)
                if end:
                    link.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has answered already
            try:
                while block := link.recv(65536):
                    out += block
            except ConnectionResetError:
                pass
            except TimeoutError:
                return None
            return out


class Shapes(ProgramTest):
    def setUp(self):
        super().setUp()
        if "KNEAR_SERVE is off" in self.run_program("serve", "--index", "none").stderr:
            self.skipTest("this build has no server")
        self.ok("build", "--base", "base.fvecs", "--index", "Flat", "--out", "base.knear")
        self.ok("graph", "--base", "base.bvecs", "-k", "4", "--out", "g.knear")

    def serve(self, *words):
        server = serve_test.Server(self, "--index", "base.knear", *words)
        return Target(server, b"/health", b"/indexes/base/search", {"queries": [[1] * 12]})

    def explore(self):
        server = explore_test.Server(self, "--base", "base.bvecs", "--graph", "g.knear")
        return Target(server, b"/api/item/0", b"/api/search", {"vector": [1] * 12})

    def both(self):
        return ("serve", self.serve("--max-body", "4M")), ("explore", self.explore())

    def test_refused(self):
        for command, target in self.both():
            for name, status, data in REFUSED:
                data = target.filled(data)
                # And byte by byte, so that no rule hangs on where a packet ends.
                for one_by_one in (False, True) if len(data) < 400 else (False,):
                    with self.subTest(command, shape=name, one_by_one=one_by_one):
                        out = target.answer(data, one_by_one)
                        self.assertIsNotNone(out, "the connection stays open")
                        self.assertRegex(out, rb"\AHTTP/1\.1 %d " % status)
                        self.assertEqual(len(re.findall(rb"HTTP/1\.1 \d", out)), 1, out)
                        head, _, body = out.partition(b"\r\n\r\n")
                        self.assertIn(b"\r\nConnection: close", head)
                        if not data.startswith(b"HEAD"):
                            self.assertEqual(list(json.loads(body)), ["error"])
                            self.assertNotIn("\n", json.loads(body)["error"])
            self.assertEqual(target.server.ask(target.get_path.decode())[0], 200)
            self.assertEqual(target.server.end(), (0, "", ""))

    def test_taken(self):
        for command, target in self.both():
            for name, data in TAKEN:
                for one_by_one in False, True:
                    with self.subTest(command, shape=name, one_by_one=one_by_one):
                        out = target.answer(target.filled(data), one_by_one, end=True)
                        self.assertEqual(out.count(b"HTTP/1.1 200 "), 2, out)
                        self.assertEqual(len(re.findall(rb"HTTP/1\.1 \d", out)), 2, out)

    def test_methods(self):
        for command, target in self.both():
            ask, path = target.server.ask, target.get_path.decode()
            for method in "POST", "PUT", "DELETE", "OPTIONS", "get", "BREW":
                with self.subTest(command, method=method):
                    status, headers, _ = ask(path, method=method)
                    self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
            for method in "GET", "HEAD", "PUT":
                with self.subTest(command, method=method):
                    status, headers, _ = ask(target.post_path.decode(), method=method)
                    self.assertEqual((status, headers["Allow"]), (405, "POST"))
            self.assertEqual(ask("/none", method="PUT")[0], 404)
            # HEAD: the head of what GET answers, and no body behind it.
            for each in path, "/":
                _, wanted, body = ask(each)
                status, headers, nothing = ask(each, method="HEAD")
                self.assertEqual((status, nothing), (200, b""))
                self.assertEqual(headers["Content-Length"], str(len(body)))
                self.assertEqual(headers.items(), wanted.items())
            data = b"HEAD <GET> HTTP/1.1\r\nHost: <HOST>\r\n\r\n" * 2 + b"HEAD /none HTTP/1.1\r\n"
            data += b"Host: <HOST>\r\n\r\n" + SECOND
            out = target.answer(target.filled(data), end=True)
            parts = out.split(b"\r\n\r\n")
            statuses = [part[:13] for part in parts[:-1]]
            wanted = [b"HTTP/1.1 %d " % status for status in (200, 200, 404, 200)]
            self.assertEqual(statuses, wanted)

    def test_targets_that_mean_the_same(self):
        for _, target in self.both():
            path = target.get_path.decode()
            wanted = target.server.ask(path)[2]
            coded = "/" + "".join(f"%{ord(c):02x}" if c.isalpha() else c for c in path[1:])
            host = f"localhost:{target.port}"
            for other in coded, coded.upper().replace("%2F", "/"), f"http://{host}{coded}":
                self.assertEqual(target.server.ask(other)[2], wanted, other)
            page = target.server.ask("/")[2]
            self.assertEqual(target.server.ask(f"http://{host}")[2], page)
            # A slash that is written so is a letter of a name, and dots lead nowhere.
            for other in path.replace("/", "/%2f"), path.replace("/", "%2F"), f"/x/..{path}":
                self.assertIn(target.server.refused(other)[0], (400, 404), other)
        server = self.serve("--read-only").server
        self.assertEqual(server.json("/indexes/b%61s%65")["name"], "base")

    def test_a_token_is_asked_for_whatever_the_target_looks_like(self):
        self.file("token").write_text("a-token-of-some-length\n")
        target = self.serve("--token-file", "token")
        for path in "/metrics", "/m%65trics", "http://x/metrics", "/health/../metrics", "//health":
            self.assertEqual(target.server.refused(path)[0], 401, path)
        for path in "/health", "/h%65alth", "http://example.org/health":
            self.assertEqual(target.server.ask(path)[0], 200, path)
        # No page has the token by itself, so the origin does not matter. The form does.
        right = {"Authorization": "Bearer a-token-of-some-length", "Origin": "http://example.org"}
        self.assertEqual(target.server.ask("/indexes", headers=right)[0], 200)
        data = get(b"Authorization: Bearer a-token-of-some-length\r\n" * 2, target=b"/indexes")
        self.assertRegex(target.answer(target.filled(data), end=True), rb"\AHTTP/1\.1 401 ")
        data = get(host=b"Host: localhost:80@evil.example\r\n")
        self.assertRegex(target.answer(target.filled(data), end=True), rb"\AHTTP/1\.1 400 ")

    def test_a_body_arrives_at_a_least_rate(self):
        """Below that it is answered 408, long before its time is over."""
        for _, target in ("serve", self.serve("--timeout", "4")), ("explore", self.explore()):
            for head, byte in (
                (b"Content-Length: 100000\r\n", b" "),
                (b"Transfer-Encoding: chunked\r\n", b"1\r\n \r\n"),
                (b"Expect: 100-continue\r\nContent-Length: 5\r\n", b""),
            ):
                with socket.create_connection(("127.0.0.1", target.port), timeout=0.1) as link:
                    link.sendall(target.filled(post(head, after=b"")))
                    out, sent = b"", 0
                    while True:
                        try:
                            if byte and b"408" not in out:
                                link.sendall(byte)
                                sent += 1
                            block = link.recv(65536)
                            out += block
                            if not block:
                                break
                        except TimeoutError:
                            pass
                        except (ConnectionResetError, BrokenPipeError):
                            break
                    out = out.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
                    self.assertRegex(out, rb"\AHTTP/1\.1 408 (?s:.*)\r\nConnection: close")
                    said = json.loads(out.partition(b"\r\n\r\n")[2])["error"]
                    self.assertRegex(said, r"must arrive at 4096 bytes a second, but \d+ came in ")
            self.assertEqual(target.server.ask(target.get_path.decode())[0], 200)
            self.assertEqual(target.server.end(), (0, "", ""))

    @not_sanitised
    def test_a_thousand_slow_clients(self):
        """Idle ones, and such that send a byte now and then of a head or of a body."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _, target in ("serve", self.serve("--timeout", "3")), ("explore", self.explore()):
            began = time.monotonic()
            links = []
            for i in range(1000):
                links.append(socket.create_connection(("127.0.0.1", target.port), timeout=60))
                links[-1].sendall(
                    target.filled(
                        [b"", b"GET / HTT", post(b"Content-Length: 3000\r\n", b"{")][i % 3]
                    )
                )
            longest = 0.0
            for tick in range(6):
                for i, link in enumerate(links):
                    if i % 3 > 0:
                        with contextlib.suppress(OSError):
                            link.sendall(b"x")
                asked = time.monotonic()
                self.assertEqual(target.server.ask(target.get_path.decode())[0], 200, tick)
                longest = max(longest, time.monotonic() - asked)
                time.sleep(0.2)
            self.assertLess(longest, 2, "others wait for those that are slow")
            for i, link in enumerate(links):
                with contextlib.suppress(ConnectionResetError):
                    said = b"HTTP/1.1 408 " if i % 3 == 2 else b""
                    self.assertEqual(link.recv(100)[: len(said) or 100], said)
                link.close()
            # A head, and then a body, have the limit each, which is 5 seconds of `knear explore`.
            self.assertLess(time.monotonic() - began, 30)
            self.assertEqual(target.server.end(), (0, "", ""))

    def test_few_descriptors(self):
        """Those that there are are used, and that they are short is said."""

        def few():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

        process = subprocess.Popen(
            [self.program, "serve", "--index", "base.knear", "--port", "0"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=few,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        port = int(process.stdout.readline().split(" ")[0].rsplit(":", 1)[1])
        said = re.fullmatch(
            r"knear: this process may have 32 open files \(ulimit -n\): "
            r"(\d+) connections at a time, not 1024\n",
            process.stderr.readline(),
        )
        fit = int(said[1])
        self.assertGreater(fit, 3)
        links = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
        statuses = []
        for link in links[: fit + 1]:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % port)
            statuses.append(link.recv(65536)[9:12])
        self.assertEqual(statuses, [b"200"] * fit + [b"503"])
        for link in links:
            link.close()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(said, "")
        result = self.run_program(
            "serve", "--index", "base.knear", "--port", "0",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14)),
        )  # fmt: skip
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Aknear: no connection fits: .* 14 open files .*\n\Z")

    def test_standard_output_that_takes_nothing(self):
        """A pipe that is full: the server answers, and its line comes once there is room."""
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        size = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write, b"x" * size)
        for words, path in (
            (["serve", "--index", "base.knear"], "/health"),
            (["explore", "--base", "base.bvecs", "--graph", "g.knear"], "/api/info"),
        ):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            process = subprocess.Popen(
                [self.program, *words, "--port", str(port)],
                cwd=self.folder,
                env=self.environment,
                stdout=write,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            request = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (path.encode(), port)
            out = b""
            for _ in range(300):
                self.assertIsNone(process.poll())
                with (
                    contextlib.suppress(ConnectionRefusedError),
                    socket.create_connection(("127.0.0.1", port), timeout=5) as link,
                ):
                    link.sendall(request)
                    out = link.recv(65536)
                    break
                time.sleep(0.05)
            self.assertRegex(out, rb"\AHTTP/1\.1 200 ")
            self.assertEqual(os.read(read, size), b"x" * size)
            self.assertIn(b"127.0.0.1:%d" % port, os.read(read, size))
            os.write(write, b"x" * size)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
        os.close(write)
        # A pipe without a reader is an error, as for any command.
        read, write = os.pipe()
        os.close(read)
        self.addCleanup(os.close, write)
        for words in (["serve", "--index"], ["explore", "--graph", "g.knear", "--base"]):
            words.append("base.knear" if words[0] == "serve" else "base.bvecs")
            self.fails(1, *words, "--port", "0", says="standard output", stdout=write)

    def test_many_at_once(self):
        """More connections than the threads of any server, each with its own answer."""
        for _, target in self.both():
            fields = b"Connection: close\r\nContent-Length: <LENGTH>\r\n"
            data = target.filled(post(fields, b"<BODY>"))
            with concurrent.futures.ThreadPoolExecutor(64) as pool:
                outs = set()
                for out in pool.map(target.answer, [data] * 300):
                    head, _, body = out.partition(b"\r\n\r\n")
                    answer = json.loads(body)
                    answer.pop("seconds", None)
                    outs.add((head[:13], json.dumps(answer)))
            self.assertEqual(len(outs), 1)
            self.assertEqual(outs.pop()[0], b"HTTP/1.1 200 ")


if __name__ == "__main__":
    main()
