"""A server for tests of the heddle command: says on a Unix socket what a test wants to hear.

usage: client_server.py DIR: listens on DIR/s, writes each request's body to DIR/request.json. What it
answers follows from the prompt, or from the last message: see the methods of Handler."""
import json
import os
import socketserver
import sys
from http.server import BaseHTTPRequestHandler

DIR = sys.argv[1]
STATUS = {
    "version": "0.0", "model": "fake", "health": "ready", "uptime_seconds": 125.0, "requests": 2,
    "configuration": {"fabric": {"workers": "2"}},
    "workers": [{"rank": 0, "state": "ready", "pid": 71, "progress_age_seconds": 0.004,
                 "memory": {"weights_bytes": 15659280, "load_ns": 656974099}, "numerics": "index keys bf16, rows bf16, act f32"},
                {"rank": 1, "state": "down"}],
    "queue": {"waiting": 0, "limit": 1024, "timeout_seconds": 120.0},
    "cache": {"max_context": 65536, "classes": [{"class": "raw", "pages": 100, "bytes_per_page": 393216}]},
    "scheduler": {"running": 1, "last_step": {"sequences": 1, "tokens": 3}},
}
USAGE = {"prompt_tokens": 1234, "completion_tokens": 5, "total_tokens": 1239,
         "prompt_tokens_details": {"cached_tokens": 64}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "unix"

    def log_message(self, *_):
        pass

    def reply(self, status, value, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, STATUS) if self.path == "/status" else self.reply(404, {})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        with open(DIR + "/request.tmp", "wb") as f:
            f.write(raw)
        os.rename(DIR + "/request.tmp", DIR + "/request.json")
        self.body = json.loads(raw)
        self.chat = self.path.endswith("/chat/completions")
        ask = self.body["messages"][-1]["content"] if self.chat else self.body["prompt"]
        word = ask.split()[-1] if ask.split() else ""
        getattr(self, "say_" + word, self.say_hello)()

    # ---- what a prompt that ends with this word is answered

    def say_hello(self):
        self.answer(["Hel", "lo, w\u00f6rld", "! \u20ac"])

    def say_think(self):
        self.answer(["42"], ["let me ", "see"])

    def say_evil(self):
        self.answer(["a\x1b[2Jb"])

    def say_refuse(self):
        self.reply(400, {"error": {"message": "temperature must be at least 0", "type": "invalid_request_error"}})

    def say_busy(self):
        self.reply(503, {"error": {"message": "the workers are not ready"}})

    def say_broken(self):
        self.reply(500, b"<html>", "text/html")

    def say_garbage(self):
        self.reply(200, b"not json")

    def say_hangup(self):
        self.close_connection = True

    def say_cut(self):
        self.begin()
        self.event(self.piece("part of"))
        self.end()

    def say_fail(self):
        self.begin()
        self.event(self.piece("part of"))
        self.event({"error": {"message": "a worker died"}})
        self.end()

    def say_abort(self):  # the connection ends inside a chunk
        self.begin()
        self.wfile.write(b"ff\r\ndata: {")
        self.wfile.flush()
        self.close_connection = True

    def say_slow(self):  # one piece, then nothing until the client leaves
        self.begin()
        self.event(self.piece("one piece"))
        while self.rfile.read(1):
            pass
        open(DIR + "/left", "w").close()
        self.close_connection = True

    # ---- how

    def answer(self, pieces, reasoning=()):
        if not self.body.get("stream"):
            text = "".join(pieces)
            choice = {"message": {"content": text, "reasoning_content": "".join(reasoning) or None}} \
                if self.chat else {"text": text}
            self.reply(200, {"choices": [dict(choice, index=0, finish_reason="stop")], "usage": USAGE})
            return
        self.begin()
        if self.chat:
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None})
        for r in reasoning:
            self.event({"choices": [{"index": 0, "delta": {"reasoning_content": r}}]})
        for p in pieces:
            self.event(self.piece(p))
        self.chunk(b": a comment\n\n")
        self.event({"choices": [], "usage": USAGE})
        self.chunk(b"data: [DONE]\n\n")
        self.end()

    def piece(self, text):
        part = {"delta": {"content": text}} if self.chat else {"text": text}
        return {"choices": [dict(part, index=0, finish_reason=None)]}

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, value):
        data = b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
        half = len(data) // 2  # two chunks for each event
        self.chunk(data[:half])
        self.chunk(data[half:])

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self):
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


if __name__ == "__main__":
    server = Server(DIR + "/s", Handler)
    open(DIR + "/ready", "w").close()
    server.serve_forever()
