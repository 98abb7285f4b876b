"""What the tests of `knear explore` and `knear serve` share: a server on a free port, and requests.

class Server(server_cases.Server):
    command, says, ends = "serve", r"http://127\\.0\\.0\\.1:(\\d+) serves .*", signal.SIGTERM
Server(test, "--index", "base.knear").json("/health")
"""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess


class Server:
    """A running `knear COMMAND --port 0`, which ends with the test."""

    command = ""
    says = ""  # the line that it prints, as a pattern whose first group is the port
    ends = signal.SIGINT
    type_of_json = r"application/json.*"
    resets = ()  # errors of a connection that raw() takes for its end

    def __init__(self, test, *words):
        self.test = test
        self.process = subprocess.Popen(
            [test.program, self.command, *map(str, words), "--port", "0"],
            cwd=test.folder,
            env=test.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: [
                signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)
            ],
        )
        test.addCleanup(self.end)
        line = self.process.stdout.readline()
        found = re.fullmatch(self.says + r"\n", line)
        if not found:
            raise AssertionError(line + self.process.stderr.read())
        self.port = int(found[1])

    @property
    def host(self):
        """The field Host of a request."""
        return b"Host: localhost:%d\r\n" % self.port

    def end(self, how=None):
        if self.process.poll() is None:
            self.process.send_signal(how or self.ends)
        out = self.process.communicate(timeout=60)
        return self.process.returncode, *out

    def ask(self, path, body=None, headers=None, method=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if isinstance(body, dict):
            body = json.dumps(body)
        link.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        answer = link.getresponse()
        content = answer.read()
        link.close()
        return answer.status, answer.headers, content

    def json(self, path, body=None, **more):
        status, headers, content = self.ask(path, body, **more)
        assert status == 200, content
        assert re.fullmatch(self.type_of_json, headers["Content-Type"])
        return json.loads(content)

    def refused(self, path, body=None, headers=None, method=None):
        status, _, content = self.ask(path, body, headers, method)
        said = json.loads(content)
        assert list(said) == ["error"] and "\n" not in said["error"], content
        return status, said["error"]

    def raw(self, data, end=True):
        """What comes back for these bytes, as they are."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
            link.sendall(data)
            if end:
                link.shutdown(socket.SHUT_WR)
            out = b""
            with contextlib.suppress(*self.resets):
                while block := link.recv(65536):
                    out += block
            return out
