"""Requests as bytes on a connection: in order, or damaged; and the plans by which they are sent."""
import bodies

MAX_BODY = 1 << 20  # api.max_body
GETS = ["/v1/models", "/v1/models/heddle-mini", "/health", "/status", "/version", "/metrics"]
POSTS = [path for path, _ in bodies.CALLS]
JUNK = [b"\x00", b"\n", b"\r", b"\r\n", b" ", b":", b"\t", b"\x7f", b"\xff", b"HTTP/1.1", b"GET ", b"%00", b"%", b"?", b"\r\n ",
        b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", b"0\r\n\r\n", b"A" * 9000,
        b"X: y\r\n" * 101, b"Expect: 100-continue\r\n", b"\r\n\r\n"]


class Request:
    """allowed: statuses that may answer it (None: any that is not a fault); path None: not known."""

    def __init__(self, method, path, data, allowed, rid=None):
        self.method, self.path, self.data, self.allowed, self.id = method, path, data, allowed, rid
        self.last = False  # the connection may be closed after its answer

    @property
    def to_head(self):
        return self.method == "HEAD"


def chunked(rng, body):
    out = []
    while body:
        n = rng.choice([1, 2, 7, 100, len(body)])
        piece, body = body[:n], body[n:]
        ext = rng.choice([b"", b"", b"", b";a=b", b';q="x"'])
        size = (b"%x" if rng.random() < 0.7 else b"%X") % len(piece)
        out.append(b"0" * rng.choice([0, 0, 3]) + size + ext + b"\r\n" + piece + b"\r\n")
    return b"".join(out[:2000]) + b"0\r\n" + rng.choice([b"", b"", b"X-Trailer: 1\r\n"]) + b"\r\n" if len(out) <= 2000 else None


def build(rng, method, target, body, rid, kind="application/json"):
    """A request that is right by HTTP."""
    head = [f"{method} {target} HTTP/1.1".encode(), b"Host: heddle"]
    if rid:
        head.append(b"X-Request-Id: " + rid.encode())
    if kind:
        head.append(b"Content-Type: " + kind.encode())
    for extra in (b"Accept: */*", b"User-Agent: storm", b"accept-encoding: gzip, br", b"X-Odd:", b"Authorization: Bearer x"):
        if rng.random() < 0.15:
            head.append(extra)
    if body is None:
        return b"\r\n".join(head) + b"\r\n\r\n"
    pieces = chunked(rng, body) if rng.random() < 0.2 else None
    if pieces is not None:
        head.append(b"Transfer-Encoding: chunked")
        return b"\r\n".join(head) + b"\r\n\r\n" + pieces
    head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def post(rng, rid):
    path, body, good = bodies.any_body(rng)
    while len(body) > MAX_BODY:
        path, body, good = bodies.any_body(rng)
    kind = rng.choice(["application/json"] * 8 + ["application/json; charset=utf-8", "APPLICATION/JSON", None])
    allowed = None
    if good:
        allowed = {200, 429}
    elif bodies.is_json_object(body) is False:
        allowed = {400}
    if rng.random() < 0.02:
        kind = rng.choice(["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"])
        allowed = {415}
    return Request("POST", path, build(rng, "POST", path, body, rid, kind), allowed, rid)


def get(rng, rid):
    r = rng.random()
    path = rng.choice(GETS)
    if r < 0.6:
        query = rng.choice(["", "", "?", "?a=b&c", "?%00"])
        return Request("GET", path, build(rng, "GET", path + query, None, rid, None), {200}, rid)
    if r < 0.75:
        return Request("HEAD", path, build(rng, "HEAD", path, None, rid, None), {200}, rid)
    if r < 0.9:
        method = rng.choice(["PUT", "DELETE", "PATCH", "OPTIONS", "POST"])
        return Request(method, path, build(rng, method, path, b"{}", rid), {405}, rid)
    path = rng.choice(["/", "/v1", "/v1/", "/v1/chat", "/v1/models/", "/v1/models/other", "/statusx", "//health",
                       "/v1/models/" + "x" * 3000, "/%68ealth2", "/%c3%a9", "/%ff", "/v1/../health", "/STATUS"])
    return Request("GET", path, build(rng, "GET", path, None, rid, None), {400, 404}, rid)


def right(rng, rid):
    """A request that HTTP itself has nothing against: it must be answered."""
    return get(rng, rid) if rng.random() < 0.1 else post(rng, rid)


def too_large(rng, rid):
    data = f"POST {rng.choice(POSTS)} HTTP/1.1\r\nHost: heddle\r\nX-Request-Id: {rid}\r\n" \
        f"Content-Length: {MAX_BODY + 1}\r\n\r\n".encode()
    r = Request("POST", None, data + b"x" * rng.choice([0, 100, 70000]), {413}, rid)
    r.last = True
    return r


def with_body(rng, rid):
    """One whose answer has a body, whatever becomes of it: a reader that counts no requests cannot
    know that the answer to a HEAD ends with its head."""
    while True:
        r = right(rng, rid)
        if not r.to_head:
            return r


def damaged(rng, rid):
    """Bytes that were one or more requests. Nothing is known of how many answers belong to it."""
    b = with_body(rng, rid).data
    for _ in range(rng.randint(1, 3)):
        head = b.find(b"\r\n\r\n")
        head = head if head >= 0 and rng.random() < 0.8 else len(b)
        at = rng.randrange(head + 1)
        kind = rng.randrange(9)
        if kind == 0:
            b = b[:at] + bytes([rng.randrange(256)]) + b[at + 1:]
        elif kind == 1:
            b = b[:at] + b[at + rng.randint(1, 20):]
        elif kind == 2:
            b = b[:at] + rng.choice(JUNK) + b[at:]
        elif kind == 3:
            b = b[:at] + b[max(0, at - rng.randint(1, 60)):]
        elif kind == 4:
            wrong = rng.choice([b"0", b"1", b"7", b"-1", b"+5", b"5,5", b"1e3", b"0x10", b"", b"99999999999999999999999", b"9999", b" 5 5"])
            b = replace_header(b, b"Content-Length", wrong)
        elif kind == 5:
            b = b.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: " + rng.choice(
                [b"chunked", b"gzip", b"chunked, chunked", b"chunked;q=1", b"identity", b"CHUNKED"]) + b"\r\n\r\n", 1)
        elif kind == 6:
            b = b.replace(b"HTTP/1.1", rng.choice([b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.10", b"", b"SIP/2.0"]), 1)
        elif kind == 7:
            b = b.replace(b"\r\n", rng.choice([b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"]), rng.choice([1, 1, -1]))
        else:
            b = chunk_damage(rng, b)
    return b


def replace_header(b, name, value):
    i = b.find(name + b": ")
    if i < 0:
        return b.replace(b"\r\n\r\n", b"\r\n" + name + b": " + value + b"\r\n\r\n", 1)
    end = b.find(b"\r\n", i)
    return b[:i] + name + b": " + value + b[end:]


def chunk_damage(rng, b):
    head, _, body = b.partition(b"\r\n\r\n")
    i = head.find(b"Content-Length: ")
    if i >= 0:
        end = head.find(b"\r\n", i)
        head = head[:i] + b"Transfer-Encoding: chunked" + (head[end:] if end >= 0 else b"")
    size = rng.choice([b"%x" % len(body), b"%x" % (len(body) + 1), b"fffffffffffffffff", b"ffffffff", b"-1", b"g", b"", b"0", b"5;" + b"e" * 40000])
    return head + b"\r\n\r\n" + size + b"\r\n" + body + rng.choice([b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"\r\n0\r\nA: b\r\n" + b"B: c\r\n" * 3000])


def cut(rng, data):
    """The pieces in which bytes are sent: (seconds before it, bytes)."""
    kind = rng.random()
    if kind < 0.6 or len(data) < 2:
        return [(0, data)]
    if kind < 0.9:
        at = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, 4)))
    else:  # byte by byte, around some place
        start = rng.randrange(len(data))
        at = list(range(max(1, start), min(len(data), start + rng.choice([5, 40]))))
    ends = at + [len(data)]
    pause = rng.choice([0, 0, 0.001, 0.005])
    return [(pause if i else 0, data[a:b]) for i, (a, b) in enumerate(zip([0] + at, ends)) if a < b]
