#!/usr/bin/env python3
"""Clients that go away, in the queue, while their prompt is read and while they are answered, streaming or
not: each frees what it had within one step, and another client's stream, open all the time, is to the last bit
what it is alone. The daemon runs three sequences at a time and takes few tokens a step (clients_cancel.bats).

    clients_cancel.py     $SOCKET, $TCP
"""
import http.client
import json
import os
import signal
import socket
import threading

from clients_known import HELLO, KNOWN, UnixConnection, call, wait_until, wait_until_idle

PATIENCE = 180
WITNESS = {"prompt": HELLO.prompt_ids, "temperature": 0, "ignore_eos": True, "logprobs": 1, "stream": True,
           "return_token_ids": True}
LONG_PROMPT = max(KNOWN, key=lambda k: len(k.prompt_ids)).prompt_ids
ENDLESS = {"prompt": "Hello", "ignore_eos": True, "max_tokens": 60000}


class Client:
    """A request that is sent, and whose connection can be cut."""

    def __init__(self, way, body):
        self.connection = UnixConnection(os.environ["SOCKET"]) if way == "unix" else \
            http.client.HTTPConnection(os.environ["TCP"], timeout=PATIENCE)
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})

    def go(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def events(self):
        for line in self.connection.getresponse():
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()


def status_when(what, condition):
    return wait_until(lambda status: condition(status["scheduler"], status["queue"]), what, PATIENCE)


def metric(name):
    text = call("GET", "/metrics")[2]
    return float(next(line.split()[1] for line in text.splitlines() if line.split()[0] == name))


def aborted():
    return metric('heddle_requests_total{outcome="aborted"}')


class Witness:
    """The stream that must not notice: begun before all others, read by a thread, left after them."""

    def __init__(self):
        self.client = Client("unix", WITNESS | {"max_tokens": 60000})
        self.said, self.ended, self.leaving = [], None, False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            for event in self.client.events():
                self.said.append(event)
            self.ended = f"it ended: {self.said[-1:]}"
        except (OSError, http.client.HTTPException, ValueError) as e:
            self.ended = None if self.leaving else f"it broke off: {e!r}"

    def leave(self):
        """What it said until now: (token, its log-probability) of each."""
        assert not self.ended, self.ended
        count = len(self.said)
        self.leaving = True
        self.client.connection.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.client.connection.close()
        return tokens(self.said[:count])


def tokens(events):
    return [pair for event in events for choice in json.loads(event)["choices"] if choice["logprobs"]
            for pair in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)]


def frees(act, what):
    """Runs act, waits until one more is cancelled, and says how many steps and prompt tokens it took from when
    heddled knew (while the workers stand still) until all was freed."""
    before, gone = call("GET", "/status")[2], aborted()
    workers = [w["pid"] for w in before["workers"]]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        act()
        wait_until(lambda _: aborted() != gone, f"noticed while the workers stand still: {what}", PATIENCE)
        known = call("GET", "/status")[2]["scheduler"]
        taken = metric("heddle_computed_prompt_tokens_total")
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    after = status_when("cancelled", lambda s, q: s["cancelled"] == before["scheduler"]["cancelled"] + 1)
    return known, after["scheduler"], metric("heddle_computed_prompt_tokens_total") - taken


def in_queue(way, stream):
    fillers = [Client("unix", ENDLESS) for _ in range(2)]
    status_when("three running", lambda s, q: s["running"] == 3)
    behind = Client(way, ENDLESS | {"stream": stream})
    status_when("one waiting", lambda s, q: q["waiting"] == 1)
    before = aborted()
    behind.go()
    status_when("an empty queue", lambda s, q: q["waiting"] == 0)
    status = status_when("counted", lambda s, q: aborted() == before + 1)
    assert status["scheduler"]["running"] == 3, status["scheduler"]
    for client in fillers:
        client.go()
    status_when("the witness alone", lambda s, q: s["running"] == 1)


def in_prefill(way, stream):
    client = Client(way, {"prompt": LONG_PROMPT, "max_tokens": 1, "stream": stream})
    status_when("reading", lambda s, q: s["reading_prompts"] == 1)
    known, after, taken = frees(client.go, "prefill")
    step = after["step_tokens"]
    # what was on its way, and no chunk more
    assert taken <= (known["steps_in_flight"] + 1) * step, f"{taken} tokens of the prompt were read on"
    assert after["reading_prompts"] == 0 and after["running"] == 1, after


def in_decode(way, stream):
    client = Client(way, ENDLESS | {"stream": stream})
    status_when("decoding", lambda s, q: s["running"] == 2 and s["reading_prompts"] == 0)
    if stream:
        next(client.events())
    known, after, _ = frees(client.go, "decode")
    assert after["steps"] - known["steps"] <= known["steps_in_flight"] + 2, (known, after)
    assert after["running"] == 1, after


def main():
    assert len(LONG_PROMPT) > 4000
    witness = Witness()
    status_when("the witness running", lambda s, q: s["running"] == 1)
    for phase in (in_queue, in_prefill, in_decode):
        for way in ("unix", "tcp"):
            for stream in (False, True):
                phase(way, stream)
                print(f"{phase.__name__}, {way}, stream {stream}: freed", flush=True)
    enough = len(witness.said) + 100
    status_when("going on after the others", lambda s, q: len(witness.said) >= enough or witness.ended)
    said = witness.leave()
    cache = wait_until_idle()["cache"]
    assert all(c["used"] == 0 and c["promised"] == 0 for c in cache["classes"]), cache
    alone = list(Client("unix", WITNESS | {"max_tokens": len(said)}).events())
    assert alone.pop() == "[DONE]"
    assert tokens(alone) == said, "the witness noticed"
    print(f"the witness noticed nothing in {len(said)} tokens")


if __name__ == "__main__":
    main()
