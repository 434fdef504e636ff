"""HTTP answers out of a connection's bytes, strictly: anything not exactly as heddled's own form of
HTTP/1.1 is Wrong. Knows nothing of what an answer means (judge.py)."""
import re

STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z][A-Za-z -]*\Z")
HEADER = re.compile(rb"([A-Za-z][A-Za-z0-9-]*): ([^\x00-\x08\x0a-\x1f\x7f]*)\Z")
CHUNK_SIZE = re.compile(rb"[0-9a-f]{1,8}\Z")


class Wrong(Exception):
    """What the daemon did that it must not do."""


class Answer:
    def __init__(self, status, headers):
        self.status = status
        self.headers = headers
        self.body = b""
        self.whole = False  # False: the connection was closed in the middle

    @property
    def closes(self):
        return self.headers.get("connection") == "close"


def parse_head(head):
    lines = head.split(b"\r\n")
    m = STATUS_LINE.match(lines[0])
    if not m:
        raise Wrong(f"status line {lines[0][:200]!r}")
    headers = {}
    for line in lines[1:]:
        h = HEADER.match(line)
        if not h:
            raise Wrong(f"header line {line[:200]!r}")
        name = h[1].decode().lower()
        if name in headers:
            raise Wrong(f"header {name} twice")
        headers[name] = h[2].decode("utf-8", "replace")
    return Answer(int(m[1]), headers)


class Reader:
    """feed() bytes as they come; take() gives the next whole answer, or None."""

    def __init__(self):
        self.data = bytearray()
        self.now = None  # the answer whose body is being read
        self.left = 0    # bytes of its body, or of its chunk with CRLF, still to come
        self.chunked = False
        self.interim = 0

    def feed(self, data):
        self.data += data

    def pending(self):
        return bool(self.data) or self.now is not None

    def take(self, to_head=False):
        """The next answer, once it is whole; to_head: it answers a HEAD request."""
        while self.now is None:
            end = self.data.find(b"\r\n\r\n")
            if end < 0:
                if len(self.data) > 65536 or (self.data and not b"HTTP/1.1 ".startswith(self.data[:9])):
                    raise Wrong(f"no answer begins so: {bytes(self.data[:200])!r}")
                return None
            answer = parse_head(bytes(self.data[:end]))
            del self.data[:end + 4]
            if answer.status == 100:
                self.interim += 1
                continue
            self.begin(answer, to_head)
        return self.read_body()

    def begin(self, answer, to_head):
        h = answer.headers
        for name in ("date", "x-request-id", "connection"):
            if name not in h:
                raise Wrong(f"an answer without {name}: {answer.status} {h}")
        self.chunked = h.get("transfer-encoding") == "chunked"
        if self.chunked == ("content-length" in h):
            # a stream to an HTTP/1.0 client ends where the connection does
            if self.chunked or not answer.closes:
                raise Wrong(f"not one way to say how long the body is: {h}")
        self.left = int(h.get("content-length", -1))
        if to_head:
            self.left, self.chunked = 0, False
        elif self.chunked:
            self.left = 0
        self.now = answer

    def read_body(self):
        if self.chunked:
            return self.read_chunks()
        n = len(self.data) if self.left < 0 else min(self.left, len(self.data))
        self.now.body += self.data[:n]
        del self.data[:n]
        if self.left < 0:
            return None
        self.left -= n
        return self.done() if self.left == 0 else None

    def read_chunks(self):
        while True:
            if self.left == 0:
                end = self.data.find(b"\r\n")
                if end < 0:
                    return None
                if not CHUNK_SIZE.match(self.data[:end]):
                    raise Wrong(f"chunk size {bytes(self.data[:60])!r}")
                size = int(self.data[:end], 16)
                if size == 0 and len(self.data) < end + 4:
                    return None
                del self.data[:end + 2]
                if size == 0:
                    if self.data[:2] != b"\r\n":
                        raise Wrong(f"after the last chunk: {bytes(self.data[:60])!r}")
                    del self.data[:2]
                    return self.done()
                self.left = size + 2
            if len(self.data) < self.left:
                return None
            if self.data[self.left - 2:self.left] != b"\r\n":
                raise Wrong("a chunk does not end with CR LF")
            self.now.body += self.data[:self.left - 2]
            del self.data[:self.left]
            self.left = 0

    def done(self):
        answer, self.now = self.now, None
        answer.whole = True
        return answer

    def end(self):
        """The connection is closed. The answer that this ends, whole or cut, or None."""
        answer, self.now = self.now, None
        if answer and not self.chunked and self.left < 0:
            answer.whole = True
        if answer is None and self.data:
            raise Wrong(f"closed within the head of an answer: {bytes(self.data[:200])!r}")
        return answer
