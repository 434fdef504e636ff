"""What the bundled model is known to say (models/heddle-mini/golden.json), for the tests of clients,
and HTTP over a Unix socket from the standard library."""
import http.client
import json
import os
import socket
import time

SOURCE = os.environ["HEDDLE_SRCDIR"]
MODEL = f"{SOURCE}/models/heddle-mini"
BOS, USER, ASSISTANT, END = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>"
TOLERANCE = 2e-3  # of a log-probability; the reference is transformers in fp32


class Known:
    """One golden conversation: a single user message and its answer."""

    def __init__(self, entry):
        prompt = entry["prompt"]
        assert prompt.startswith(BOS + USER) and prompt.endswith(ASSISTANT)
        self.prompt = prompt
        self.prompt_ids = entry["prompt_ids"]
        self.message = prompt[len(BOS + USER):-len(ASSISTANT)]
        self.answer_ids = entry["greedy_ids"]
        self.answer = entry["greedy_text"].removesuffix(END)
        self.top = dict(entry["first_token_top5_logprobs"])

    @property
    def messages(self):
        return [{"role": "user", "content": self.message}]


with open(f"{MODEL}/golden.json", encoding="utf-8") as f:
    KNOWN = [Known(entry) for entry in json.load(f)]
HELLO, WHO, REPEAT, SUM = KNOWN[:4]
# a fact in about 1,000 tokens of text
NEEDLES = [k for k in KNOWN if 500 < len(k.prompt_ids) < 1000]
LONG_NEEDLES = [k for k in KNOWN if 1000 < len(k.prompt_ids)]
assert len(NEEDLES) >= 3 and all(k.answer.isdigit() for k in NEEDLES + LONG_NEEDLES)


class UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path):
        super().__init__("heddle")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def call(method, path, body=None, headers=None):
    """One request to $SOCKET: (status, headers, decoded JSON or text)."""
    connection = UnixConnection(os.environ["SOCKET"])
    data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body).encode()
    connection.request(method, path, data, {"content-type": "application/json"} | (headers or {}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.getheader("content-type", "").startswith("application/json"):
        text = json.loads(text)
    return answer.status, answer.headers, text


def wait_until(condition, what="came true", patience=180):
    """The first /status of which the condition holds."""
    deadline = time.monotonic() + patience
    while True:
        status = call("GET", "/status")[2]
        if condition(status):
            return status
        assert time.monotonic() < deadline, f"never {what}: {status['scheduler']} {status['queue']}"
        time.sleep(0.02)  # between two looks


def is_idle(status):
    return status["scheduler"]["running"] == 0 and status["queue"]["waiting"] == 0


def wait_until_idle():
    """Until nothing runs and nothing waits; what a client left behind would show."""
    return wait_until(is_idle, "idle")
