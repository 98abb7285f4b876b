"""Altered requests to a running `knear serve`: each is to be answered by a success or a 4xx.

    counts = bad_requests.send(port, dim=12, refused=3000, seed=1)

Each begins as a valid request and is altered where its structure is: a key, a value, a row, a field
of the head, a length, a byte of the binary form. Some stay valid. The server must hold an index
named 'base' that takes changes; changes are asked for only in forms that cannot be right, so that
it stays as it is. KEPT are requests that are sent each time, before all others. <PORT> stands for
that of the server.
"""

import json
import random
import socket
import struct

KEPT = [
    b"POST /indexes/base/search HTTP/1.1\r\nHost: localhost:<PORT>\r\nContent-Length: 0\r\n\r\n",
    b"POST /indexes/base/search HTTP/1.1\r\nHost: localhost:<PORT>\r\nContent-Length: 1\r\n\r\n[",
    b"POST /indexes/base/add HTTP/1.1\r\nHost: localhost:<PORT>\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /indexes/base/search HTTP/1.1\r\nHost: localhost:<PORT>\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Length: 4\r\n\r\nKNSQ",
    b"POST /indexes/base/search HTTP/1.1\r\nHost: localhost:<PORT>\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    b"GET //indexes HTTP/1.1\r\nHost: localhost:<PORT>\r\n\r\n",
    b"GET /indexes/ HTTP/1.1\r\nHost: localhost:<PORT>\r\n\r\n",
    b"GET /indexes/base/ HTTP/1.1\r\nHost: localhost:<PORT>\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: localhost:<PORT>\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]

_VALUES = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40, 0.5, 1e308, -0.0,
    "", "x", "NaN", "\u0000", [], [[]], [[[]]], {}, {"a": 1}, [None], [1, "a"],
]  # fmt: skip
_REFUSED = b"400 401 403 404 405 409 413 414 415 417 431".split()
_RAW = ["1e999", "-", "01", "1.", ".5", "NaN", "Infinity", "tru", '"', "\\u12", "[" * 50, "{" * 50]


def _body(source: random.Random, dim: int) -> tuple[str, bytes, bool]:
    """(action, body, binary): JSON or binary, altered."""
    rows = [
        [round(source.uniform(-9, 9), 3) for _ in range(dim)] for _ in range(source.randrange(1, 4))
    ]
    action = source.choice(["search", "search", "search", "add", "remove", "replace", "reload"])
    if action == "search" and source.random() < 0.4:
        filter = [1, 5] if source.random() < 0.5 else []
        head = [len(rows), dim, 3, 0.0, 0, 0, 2 if filter else 0, len(filter)]
        if source.random() < 0.7:
            place = source.randrange(len(head))
            if place != 3:
                head[place] = source.choice([0, 1, 2, 3, 2**31, 2**32, 2**61, 2**63, 2**64 - 1])
        raw = bytearray(
            struct.pack("<4sIQQQdQQQQ", b"KNSQ", 1, *head)
            + struct.pack(f"<{len(filter)}q", *filter)
            + struct.pack(f"<{len(rows) * dim}f", *sum(rows, []))
        )
        for _ in range(source.randrange(3)):
            raw[source.randrange(len(raw))] = source.randrange(256)
        if source.random() < 0.2:
            del raw[source.randrange(len(raw)) :]
        return action, bytes(raw), True
    body: dict = {"queries": rows, "k": 3} if action == "search" else {"ids": [900001]}
    if action in ("add", "replace"):
        # Never right: a row of another length.
        body = {
            "vectors": [*rows, [1.0] * (dim + 1)],
            "ids": [900001 + i for i in range(len(rows) + 1)],
        }
    if action == "reload":
        body = {"discard_changes": 3}
    for _ in range(source.randrange(1, 3)):
        kind = source.randrange(6)
        key = source.choice(
            [*body, "k", "recall", "probes", "filter", "timeout_ms", "certify", "x", ""]
        )
        if action != "search" and kind < 3:
            kind += 3  # what could become right stays wrong
        if kind < 2:
            body[key] = source.choice(_VALUES)
        elif kind == 2 and rows:
            row = source.choice(rows)
            if row:
                row[source.randrange(len(row))] = source.choice(_VALUES)
    text = json.dumps(body)
    if source.random() < 0.5:
        place = source.randrange(len(text))
        text = text[:place] + source.choice(_RAW) + text[place + source.randrange(3) :]
    if source.random() < 0.2:
        text = text[: source.randrange(len(text))]
    return action, text.encode(errors="surrogatepass"), False


def request(source: random.Random, dim: int) -> bytes:
    """One altered request, with 'Connection: close'."""
    action, body, binary = _body(source, dim)
    length: object = len(body)
    fields = [
        f"Host: {source.choice(['localhost:<PORT>', '127.0.0.1:<PORT>', 'localhost:1'])}",
        "Connection: close",
    ]
    method, path, version = "POST", f"/indexes/base/{action}", "HTTP/1.1"
    if binary:
        fields.append("Content-Type: application/octet-stream")
    if source.random() < 0.3:
        kind = source.randrange(9)
        if kind == 0:
            length = source.choice([-1, "", "x", 2**63, 2**64, 10**30, 10**12])
        elif kind == 1:
            method = source.choice(["GET", "PUT", "post", "", "P\x00ST", "HEAD", "OPTIONS"])
        elif kind == 2:
            path = source.choice(
                ["/", "//", "/indexes/x/search", path + "?k=1", path + "/", "/%2e%2e", "*"]
            )
        elif kind == 3:
            version = source.choice(["HTTP/1.0", "HTTP/2.0", "HTTP/1.x", "", "HTTP"])
        elif kind == 4:
            fields.append(
                source.choice(
                    ["Host: x", "Content-Encoding: gzip", "Content-Length: 3", ": x", "x"]
                )
            )
        elif kind == 5:
            fields[0] = source.choice(["Host: example.org", "Host:", "X: y"])
        elif kind == 6:
            fields.append("Origin: http://example.org")
        elif kind == 7:
            fields.append("X-Long: " + "y" * source.choice([100, 5000, 20000]))
        else:
            fields.append("Transfer-Encoding: chunked")
            body = source.choice([b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), b"zz\r\n" + body])
            length = None
    if length is not None:
        fields.append(f"Content-Length: {length}")
    return (
        f"{method} {path} {version}\r\n".encode()
        + "\r\n".join(fields).encode()
        + b"\r\n\r\n"
        + body
    )


def answer(port: int, data: bytes) -> bytes:
    """What comes back, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as link:
        out = b""
        try:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while block := link.recv(65536):
                out += block
        except (ConnectionResetError, BrokenPipeError):
            pass
        return out


def send(port: int, dim: int, refused: int, seed: int) -> dict:
    """{"sent", "2xx", "4xx", "504", "closed": how many; "unexpected": [(number, request, answer)]}.

    Sends until so many were refused with a 4xx, which most are. Once there are three times as many
    of all, which no server that works comes to, or a hundred were answered as none may be, it ends
    with fewer. A request that was cut off by its own length may end with the connection, without an
    answer.
    """
    counts: dict = {"sent": 0, "2xx": 0, "4xx": 0, "504": 0, "closed": 0}
    for number in range(-len(KEPT), 3 * refused):
        if counts["4xx"] == refused or len(counts.get("unexpected", [])) >= 100:
            break
        _send_one(port, dim, seed, number, counts)
    return counts


def _send_one(port: int, dim: int, seed: int, number: int, counts: dict) -> None:
    """Sends the request of that number, which for a seed is always the same, and counts it."""
    source = random.Random(f"{seed} {number}")
    data = KEPT[number] if number < 0 else request(source, dim)
    data = data.replace(b"<PORT>", b"%d" % port)
    out = answer(port, data)
    counts["sent"] += 1
    status = out[9:12]
    if out == b"":
        counts["closed"] += 1
    elif out.startswith(b"HTTP/1.1 2"):
        counts["2xx"] += 1
    elif status == b"504":  # by a timeout_ms of a moment, which is one of the values
        counts["504"] += 1
    elif status in _REFUSED and (_is_error(out) or data.startswith(b"HEAD ")):
        counts["4xx"] += 1
    else:
        counts.setdefault("unexpected", []).append((number, data[:300], out[:300]))


def _is_error(out: bytes) -> bool:
    head, _, body = out.partition(b"\r\n\r\n")
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return list(said) == ["error"] and "\n" not in said["error"]
