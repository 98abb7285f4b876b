"""knear.Client against a real `knear serve`: the same answers as knear.Index, and its errors."""

import http.client
import os
import re
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
from knear.client import ClientError

import knear


@pytest.fixture
def served(tmp_path, rng):
    """(client, vectors, file, words): a server of 500 x 8 vectors in base.knear."""
    program = os.environ.get("KNEAR_PROGRAM")
    if not program:
        pytest.skip("KNEAR_PROGRAM names no program")
    x = rng.standard_normal((500, 8), dtype=np.float32)
    index = knear.Index("Flat", dim=8)
    index.add(x)
    index.save(tmp_path / "base.knear")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    words = [program, "serve", "--index", str(tmp_path / "base.knear"), "--port", "0"]
    words += ["--token-file", str(token)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+) ", line)
        if not found and "KNEAR_SERVE is off" in server.stderr.read():
            pytest.skip("this build serves no indexes")
        yield knear.Client(found[1], token="0123456789abcdef"), x
        server.send_signal(signal.SIGTERM)
        out, errors = server.communicate(timeout=60)
        assert (server.returncode, out, errors) == (0, "", "")


def test_answers_are_those_of_an_index(served, rng):
    client, x = served
    q = rng.standard_normal((7, 8), dtype=np.float32)
    index = knear.Index("Flat", dim=8)
    index.add(x)
    wanted = index.search(q, k=6)
    found = client.search(q, k=6)
    assert (found.ids == wanted.ids).all()
    assert found.distances.tobytes() == wanted.distances.tobytes()
    assert found.certified.all()
    assert found.ids.dtype == np.int64
    few = client.search(q, k=6, filter=[3, 4], recall=1.0, timeout_ms=60000)
    assert (few.ids[:, 2:] == -1).all()
    assert np.isinf(few.distances[:, 2:]).all()
    assert client.search(q[:0], k=3).ids.shape == (0, 3)
    assert (
        client.search(q.astype(np.float64)[:, ::-1][:, ::-1], k=6).ids.tolist()
        == found.ids.tolist()
    )


def test_changes(served):
    client, x = served
    assert client.add(x[:2]).tolist() == [500, 501]
    assert client.add(x[:2], ids=[1000, 900]).tolist() == [1000, 900]
    assert client.search(x[:1], k=3).ids.tolist() == [[0, 500, 1000]]
    client.replace([500], x[1:2])
    assert client.search(x[:1], k=3).ids[0, 1] == 1000
    assert client.remove([1000, 77777]) == 1
    assert client.about()["rows"] == 503
    assert client.indexes() == ["base"]
    assert client.health()
    assert client.add(np.empty((0, 8))).tolist() == []


def test_errors(served):
    client, x = served
    with pytest.raises(knear.InvalidArgument, match="is there already") as caught:
        client.add(x[:1], ids=[3])
    assert caught.value.status == 409
    # The name of a traffic arrives, where this index, which is exact, has no use for it.
    with pytest.raises(knear.InvalidArgument, match="^traffic is 'questions', but audit is 0"):
        client.search(x[:1], k=3, recall=0.9, traffic="questions", filter=[3])
    with pytest.raises(knear.InvalidArgument, match="^traffic must have at most 64 bytes, but has"):
        client.search(x[:1], k=3, recall=0.9, traffic="ä" * 33)
    with pytest.raises(ValueError, match="5555") as caught:
        client.replace([5555], x[:1])
    assert caught.value.status == 404
    with pytest.raises(ClientError, match="dim is 3") as caught:
        client.search(np.ones((1, 3)))
    assert caught.value.status == 400
    with pytest.raises(knear.InvalidArgument, match="no index of this name"):
        knear.Client(client.url, "none", token="0123456789abcdef").search(x[:1])
    with pytest.raises(knear.IoError, match="token") as caught:
        knear.Client(client.url, "base").search(x[:1])
    assert caught.value.status == 401
    for call in (
        lambda: client.search(x[0]),
        lambda: client.search(x[:1], k=0),
        lambda: client.search(x[:1], k=2.5),
        lambda: client.search(x[:1], recall=2),
        lambda: client.search(x[:1], probes=0),
        lambda: client.search(x[:1], filter=[1.5]),
        lambda: client.add(x[:2], ids=[1]),
        lambda: client.remove([[1]]),
        lambda: knear.Client("ftp://x"),
        lambda: knear.Client("http://x:y"),
        lambda: knear.Client("http://x/path"),
        lambda: knear.Client("x"),
    ):
        with pytest.raises(knear.InvalidArgument):
            call()
    with pytest.raises(knear.IoError, match="does not answer"):
        knear.Client("http://127.0.0.1:9", "base", timeout=5).search(x[:1])


def test_several_threads_use_one_client(served):
    client, x = served
    wrong = []

    def work(number):
        for i in range(number, 500, 8):
            if client.search(x[i : i + 1], k=1).ids[0, 0] != i:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_connection_that_was_closed_is_opened_again(monkeypatch):
    """For changes too: nothing is sent over one that the server has closed while it lay idle."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    asked = []

    def serve():
        for turn in range(4):
            link, _ = listener.accept()
            asked.append(link.recv(65536).split(b" ", 2)[:2])
            if turn < 3:
                body = b'{"status": "ok"}'
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                time.sleep(0.05)
            link.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = knear.Client(f"http://127.0.0.1:{port}", "base", timeout=20)
    assert client.health()
    time.sleep(0.3)  # the server has closed it
    assert client.health()
    time.sleep(0.3)
    with monkeypatch.context() as unseen:  # as if it were closed in the moment of asking
        unseen.setattr("knear.client._was_closed", lambda link: False)
        assert client.health()
    time.sleep(0.3)
    with pytest.raises(knear.IoError):
        client.remove([1])  # closed without an answer; not again: it may have been made
    thread.join()
    listener.close()
    assert [each[0] for each in asked] == [b"GET", b"GET", b"GET", b"POST"]
    assert issubclass(http.client.RemoteDisconnected, ConnectionError)
