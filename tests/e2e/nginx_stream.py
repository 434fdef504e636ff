#!/usr/bin/env python3
"""A stream through a proxy, while the workers stand still: what they have made must arrive before they go
on to make more. Order decides, not time: the workers are stopped by a signal.

    nginx_stream.py HOST:PORT     $SOCKET: the daemon's own, for /status
"""
import http.client
import json
import os
import signal
import socket
import sys
import time

from clients_known import HELLO, call

TOKENS = 200


def pause(workers, sig):
    for pid in workers:
        os.kill(pid, sig)


def generated():
    """Tokens that heddled has, once that no longer grows."""
    last = -1
    while True:
        now = call("GET", "/status")[2]["scheduler"]["generated_tokens"]
        if now == last:
            return now
        last = now
        time.sleep(0.1)  # between two looks


def events(answer):
    for line in answer:
        if line.startswith(b"data: "):
            yield line[6:].strip()


def main():
    status = call("GET", "/status")[2]
    workers = [w["pid"] for w in status["workers"]]
    before = status["scheduler"]["generated_tokens"]
    word = HELLO.answer_ids[0]  # every token this one, so that each has a text and an event
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({
        "messages": HELLO.messages, "temperature": 0, "stream": True, "ignore_eos": True,
        "logit_bias": {str(word): 100}, "max_tokens": TOKENS, "return_token_ids": True}), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    stream, seen, last = events(answer), 0, None
    try:
        for rounds in range(4):
            pause(workers, signal.SIGSTOP)
            made = generated() - before
            assert made < TOKENS, "all was made before the workers were stopped"
            while seen < made:  # without a buffer in between, all that was made comes
                last = json.loads(next(stream))
                seen += len(last["choices"][0].get("token_ids") or [])
            print(f"{seen} of {made} tokens arrived while the workers stood still")
            pause(workers, signal.SIGCONT)
            for _ in range(5):
                seen += len(json.loads(next(stream))["choices"][0].get("token_ids") or [])
    except (TimeoutError, socket.timeout):
        sys.exit(f"{seen} of {made} tokens arrived: the rest is held back")
    finally:
        pause(workers, signal.SIGCONT)
    rest = list(stream)
    assert rest[-1] == b"[DONE]", rest[-1]
    seen += sum(len(json.loads(e)["choices"][0].get("token_ids") or []) for e in rest[:-1])
    assert seen == TOKENS, seen


if __name__ == "__main__":
    main()
