#!/usr/bin/env python3
"""Many connections held, many streams at once, and one client that does not read.

usage: streams.py [--connections N] [--streams M] [--rounds R] [--prompts P]

Each round streams M answers over the next M of the N connections, one of them left unread until all
the others have ended and the daemon has nothing left to do. Every stream must be, to the last token
and log-probability, what its prompt got alone; every connection must still serve at the end; memory,
pages and files must be after the last round what they were after the first."""
import argparse
import array
import collections
import fcntl
import random
import selectors
import socket
import termios
import time

import judge
from answer import Reader, Wrong
from daemon import Daemon, raise_file_limit

PING = b"GET /version HTTP/1.1\r\nHost: heddle\r\n\r\n"
UNREAD_CHOICES = 4
IDLE_SECONDS = 50  # the daemon closes a connection that asks nothing for 75 s


class Prompt:
    """A request, and what it got alone."""

    def __init__(self, number, unread=False):
        text = [f"Repeat {10007 * number + 17}.", f"What is {number} + {number % 7}?",
                f"The secret code of Bruno is {4000 + number}. What is the secret code of Bruno?"][number % 3]
        tokens = 100 if unread else 4 + number % 9
        body = (f'{{"prompt":"{text}","max_tokens":{tokens},"temperature":0,"ignore_eos":true,"return_token_ids":true,'
                f'"logprobs":{20 if unread else 1},"n":{UNREAD_CHOICES if unread else 1},"stream":true,"stream_options":{{"include_usage":true}}}}').encode()
        self.data = (b"POST /v1/completions HTTP/1.1\r\nHost: heddle\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body)) + body
        self.alone = None


def meaning(answer):
    """What a stream says, without ids, times and where it was cut into events."""
    if answer.status != 200 or judge.judge(answer, None, False, None) != "200 stream":
        raise Wrong(f"{answer.status} {answer.body[:500]!r}")
    said = collections.defaultdict(list)
    for i in range(UNREAD_CHOICES):
        said[i, "text"] = ""
    for event in answer.body.decode().split("\n\n"):
        if not event.startswith("data: {"):
            continue
        v = judge.strict_json(event[6:].encode())
        for c in v["choices"]:
            i = c["index"]
            said[i, "text"] += c["text"]
            said[i, "ids"] += c.get("token_ids") or []
            said[i, "logprobs"] += (c.get("logprobs") or {}).get("token_logprobs", [])
            said[i, "reason"] += [c["finish_reason"]] if c["finish_reason"] else []
        if v.get("usage"):
            said["usage"].append(v["usage"])
    return dict(said)


class Connection:
    def __init__(self, path):
        self.path = path
        self.connect()
        self.prompt = None
        self.bytes = 0

    def connect(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(600)
        self.socket.connect(self.path)
        self.reader = Reader()
        self.used = time.monotonic()

    def ask(self, data):
        if time.monotonic() - self.used > IDLE_SECONDS:  # this process did not get to run
            self.socket.close()
            self.connect()
        self.used = time.monotonic()
        self.socket.setblocking(True)
        self.socket.sendall(data)
        self.socket.setblocking(False)

    def readable(self):
        n = array.array("i", [0])
        fcntl.ioctl(self.socket, termios.FIONREAD, n)
        return n[0]

    def receive(self, size=65536):
        """The answer, once it is whole."""
        data = self.socket.recv(size)
        if not data:
            raise Wrong(f"closed within an answer, after {self.bytes} bytes of it")
        self.bytes += len(data)
        self.reader.feed(data)
        return self.reader.take()


def wait_all(connections, done, rng=None, seconds=1800):
    """Reads from all of them until each has one answer: done(connection, answer)."""
    end = time.monotonic() + seconds
    selector = selectors.DefaultSelector()
    for c in connections:
        selector.register(c.socket, selectors.EVENT_READ, c)
    left = len(connections)
    while left:
        for key, _ in selector.select(1.0):
            c = key.data
            answer = c.receive(rng.choice([100, 1000, 65536]) if rng else 65536)
            if answer:
                selector.unregister(c.socket)
                done(c, answer)
                left -= 1
        if time.monotonic() > end:
            raise Wrong(f"{left} of {len(connections)} answers are not there after {seconds} s")
    selector.close()


def expect_version(connection, answer):
    if answer.status != 200 or b"version" not in answer.body:
        raise Wrong(f"/version: {answer.status} {answer.body[:200]!r}")


def ping(connections):
    for c in connections:
        c.ask(PING)
    wait_all(connections, expect_version)


def compare(connection, answer):
    said = meaning(answer)
    alone = connection.prompt.alone
    for key in alone.keys() | said.keys():
        if said.get(key) != alone.get(key):
            raise Wrong(f"{key} among others: {said.get(key)!r:.500}, alone: {alone.get(key)!r:.500}, for {connection.prompt.data!r}")


def ask_alone(daemon, prompt):
    c = Connection(daemon.socket)
    c.ask(prompt.data)
    wait_all([c], lambda _, answer: setattr(prompt, "alone", meaning(answer)))
    c.socket.close()
    prompt.bytes_alone = c.bytes


def finish_unread(daemon, files, unread):
    """All others are done. The one that reads nothing must not keep the engine from finishing it."""
    end = time.monotonic() + 1800
    while daemon.get("/status")[1]["scheduler"]["running"]:
        if time.monotonic() > end:
            raise Wrong("an answer that nobody reads is not finished")
        time.sleep(0.02)  # between two looks
    if unread.readable() >= unread.prompt.bytes_alone:
        raise Wrong("all of the unread answer fits into the socket: nothing is tested")
    wait_all([unread], compare)
    daemon.idle(files)


def one_round(daemon, connections, files, args, number, prompts, slow):
    rng = random.Random(f"{args.seed}:{number}")
    used = [connections[(number * args.streams + i) % len(connections)] for i in range(args.streams)]
    for c in used:
        c.prompt, c.bytes = rng.choice(prompts), 0
    unread = used[0] if slow else None
    if unread:
        unread.prompt = slow
    began = time.monotonic()
    for c in used:
        c.ask(c.prompt.data)
    most = [0]

    def done(connection, answer):
        compare(connection, answer)
        if most[0] == 0:
            most[0] = daemon.get("/status")[1]["scheduler"]["running"]

    wait_all([c for c in used if c is not unread], done, rng)
    took = time.monotonic() - began
    if unread:
        finish_unread(daemon, files, unread)
    daemon.idle(files)
    ping(connections)
    rss = daemon.rss()
    print(f"round {number}: {len(used)} streams{', one unread,' if slow else ''} right in {took:.1f} s "
          f"({most[0]} sequences at work when the first ended); KiB of their own (daemon, workers) {rss}", flush=True)
    return rss, took


def run(daemon, args):
    prompts = [Prompt(i) for i in range(args.prompts)]
    slow = Prompt(1, unread=True)
    for p in prompts:
        ask_alone(daemon, p)
    ask_alone(daemon, slow)
    print(f"seed {args.seed}; {args.prompts} prompts answered alone; the unread answer has {slow.bytes_alone} bytes",
          flush=True)
    connections = [Connection(daemon.socket) for _ in range(args.connections)]
    ping(connections)
    files = daemon.files()
    sizes, times = [], {False: [], True: []}
    for number in range(args.rounds):
        with_slow = number % 2 == 1 or args.rounds == 1
        rss, took = one_round(daemon, connections, files, args, number, prompts, slow if with_slow else None)
        sizes.append(rss)
        times[with_slow].append(took)
    if times[False] and times[True]:
        print(f"seconds a round, everybody reads: {min(times[False]):.1f}, one does not: {min(times[True]):.1f}")
    # a connection keeps a buffer once it has streamed: only after every one has, memory must be flat
    lap = -(-args.connections // args.streams)
    for who, last, first in zip(("the daemon", "the workers"), sizes[-1], sizes[min(lap, len(sizes)) - 1]):
        if not daemon.sanitized() and len(sizes) > lap and last - first > args.growth:
            raise Wrong(f"{who} grew by {last - first} KiB in the {len(sizes) - lap} rounds after the first {lap}")
    for c in connections:
        c.socket.close()
    daemon.idle(files - args.connections)
    print(f"{args.connections} connections served to the end; nothing left over")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--connections", type=int, default=200)
    p.add_argument("--streams", type=int, default=32)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--prompts", type=int, default=6)
    p.add_argument("--seed", default=str(random.SystemRandom().randrange(1 << 32)))
    p.add_argument("--growth", type=int, default=2048, help="KiB by which the daemon, and its workers, may grow once every connection has streamed")
    args = p.parse_args()
    raise_file_limit(args.connections + 100)
    daemon = Daemon([f"schedule.max_sequences={args.streams + UNREAD_CHOICES - 1}", "schedule.max_context=1024", "api.write_timeout=3600s",
                     "schedule.queue_timeout=3600s"],
                    tcp=False)
    failed = None
    try:
        try:
            run(daemon, args)
        except (Wrong, OSError) as e:
            failed = f"WRONG: {type(e).__name__} {e}"
        failed = failed or daemon.stop()
        if failed:
            daemon.fail(failed)
    finally:
        daemon.kill()


if __name__ == "__main__":
    main()
