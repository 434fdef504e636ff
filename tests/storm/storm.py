#!/usr/bin/env python3
"""Sends random and damaged requests to a live heddled and holds it to what it promises: a well-formed
answer or a closed connection, within a deadline, and afterwards a daemon as it was before.

usage: storm.py [--count N] [--seed S] [--at I] [--seconds S] [--lanes N]

Each session, one connection with some requests, is drawn from (seed, index): --seed S --at I --count 1
sends the one again that failed. See README.md for what is checked."""
import argparse
import collections
import errno
import heapq
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time

import judge
import wire
from answer import Reader, Wrong
from daemon import Daemon

HEADER_TIMEOUT = 5  # seconds
SETTINGS = ["schedule.max_sequences=16", "schedule.max_context=1024", "api.max_tokens=4", f"api.max_body={wire.MAX_BODY}",
            f"api.header_timeout={HEADER_TIMEOUT}s", "schedule.queue_timeout=3600s"]


class Late(Exception):
    """This process got to run too late to send what it had begun: a 408 is right."""


class Session:
    """One connection. steps: groups of requests sent together; the next when all are answered.
    ending: wait (for every answer), close, shut, reset (after the bytes are out, or some answer), or
    any (damaged bytes, then shut: answers that are well formed, then the end)."""

    def __init__(self, seed, index):
        rng = self.rng = random.Random(f"{seed}:{index}")
        self.index = index
        self.tcp = rng.random() < 0.25
        self.reader = Reader()
        self.expected = collections.deque()
        self.sent = bytearray()
        self.out = collections.deque()  # (pause before it, bytes)
        self.steps = collections.deque()
        self.count = 0
        self.patience = None  # seconds until it goes away, after all is sent
        self.shut = False
        self.answers = 0
        self.began_step = 0.0
        self.late = False  # we were too slow, however patient the daemon is
        self.plan(rng, lambda n: f"storm-{index}-{n}")
        self.count += sum(len(requests) for _, requests in self.steps)

    def plan(self, rng, rid):
        r = rng.random()
        if r < 0.55:  # right by HTTP: all of it must be answered
            self.ending = "wait"
            for i in range(rng.choice([1, 1, 2, 4])):
                group = [wire.right(rng, rid(f"{i}-{j}")) for j in range(rng.choice([1, 1, 1, 2, 5]))]
                self.steps.append((wire.cut(rng, b"".join(g.data for g in group)), group))
            if rng.random() < 0.03:
                last = wire.too_large(rng, rid("large"))
                self.steps.append((wire.cut(rng, last.data), [last]))
        elif r < 0.72:  # goes away, at any time
            self.ending = rng.choice(["close", "close", "reset", "shut"])
            data = b"".join(wire.with_body(rng, rid(j)).data for j in range(rng.choice([1, 1, 2])))
            if rng.random() < 0.5:
                data = data[:rng.randrange(len(data) + 1)]
            self.steps.append((wire.cut(rng, data), []))
            self.count += 1
            self.patience = rng.choice([0, 0, 0.001, 0.01, 0.05])
        else:
            self.ending = "any"
            if rng.random() < 0.0015:
                self.ending = "stall"  # stops within a request, and waits for what the daemon says
                data = wire.with_body(rng, rid(0)).data
                data = data[:rng.randrange(1, len(data))]
            else:
                data = b"".join(wire.damaged(rng, rid(j)) for j in range(rng.choice([1, 1, 2])))
            self.steps.append((wire.cut(rng, data), []))
            self.count += 1

    def connect(self, daemon):
        family = socket.AF_INET if self.tcp else socket.AF_UNIX
        self.socket = socket.socket(family)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", daemon.port) if self.tcp else daemon.socket)
        self.socket.setblocking(False)
        if self.tcp:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.next_step()

    def next_step(self):
        pieces, requests = self.steps.popleft()
        self.began_step = time.monotonic()
        self.out.extend(pieces)
        self.expected.extend(requests)

    def received(self, data):
        """Outcomes of the answers that this completes."""
        self.reader.feed(data)
        while True:
            to_head = bool(self.expected) and self.expected[0].to_head
            answer = self.reader.take(to_head)
            if answer is None:
                return
            yield self.judge(answer, to_head)
            self.answers += 1
            if answer.closes:
                break

    def is_late(self):
        """Did this process get to run too late to send, in time, all of a request it had begun?"""
        if self.ending == "wait" and self.out and time.monotonic() - self.began_step > 0.8 * HEADER_TIMEOUT:
            self.late = True
        return self.late

    def judge(self, answer, to_head):
        if self.ending != "wait":
            return judge.judge(answer, None, False, None)
        if answer.status == 408 and self.is_late():
            raise Late
        if not self.expected:
            raise Wrong(f"an answer to nothing: {answer.status} {answer.body[:300]!r}")
        r = self.expected.popleft()
        if answer.headers["x-request-id"] != r.id:
            raise Wrong(f"answer of {answer.headers['x-request-id']} where {r.id}'s belongs")
        if answer.status == 408:
            raise Wrong(f"too slow, for a request that was sent in whole: {answer.body!r}")
        outcome = judge.judge(answer, r.path, to_head, r.allowed)
        if answer.closes and not r.last:
            raise Wrong(f"closes after a request it could read: {answer.status} {answer.body[:300]!r}")
        return outcome

    def ended(self):
        """The daemon closed the connection. The last outcome, or None."""
        answer = self.reader.end()
        if self.is_late():
            return "cut, as we were slow"
        if self.ending == "wait" and (self.expected or self.steps):
            raise Wrong(f"closed with {len(self.expected)} requests not answered")
        if answer is None:
            return None
        if answer.whole:
            return judge.judge(answer, None, False, None)
        if self.ending in ("wait", "stall") or (self.ending == "any" and not self.tcp):
            # only a stream that says so itself may be cut
            return judge.judge(answer, None, False, None)
        return "cut, as we left"


class Storm:
    def __init__(self, daemon, args):
        self.daemon, self.args = daemon, args
        self.selector = selectors.DefaultSelector()
        self.outcomes = collections.Counter()
        self.timers = []  # (when, sequence, session, what)
        self.sequence = 0
        self.live = 0
        self.requests = 0
        self.index = args.at
        self.errors = []
        self.slowest = (0.0, "none")

    def wrong(self, session, why):
        self.errors.append(why)
        print(f"\nWRONG in session {session.index} ({session.ending}, {'tcp' if session.tcp else 'unix'}): {why}\n"
              f"  again: storm.py --seed {self.args.seed} --at {session.index} --count 1\n"
              f"  sent {len(session.sent)} bytes: {bytes(session.sent[:3000])!r}", flush=True)
        self.drop(session)

    def timer(self, session, seconds, what):
        self.sequence += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.sequence, session, what))

    def open(self):
        s = Session(self.args.seed, self.index)
        self.index += 1
        self.requests += s.count
        s.connect(self.daemon)
        s.began = time.monotonic()
        s.waiting = False  # for a pause between two pieces
        self.live += 1
        self.selector.register(s.socket, selectors.EVENT_READ, s)
        self.timer(s, self.args.deadline, "deadline")
        self.pump(s)

    def drop(self, s):
        if s.socket.fileno() < 0:
            return
        self.selector.unregister(s.socket)
        if s.ending == "reset" and s.tcp:
            s.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.socket.close()
        self.live -= 1
        self.slowest = max(self.slowest, (time.monotonic() - s.began, f"session {s.index}, {s.ending}, {s.count} requests"))

    def events(self, s, write):
        self.selector.modify(s.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0), s)

    def pump(self, s):
        """Sends what may be sent now."""
        while s.out and not s.waiting:
            pause, data = s.out[0]
            if pause:
                s.out[0] = (0, data)
                s.waiting = True
                self.timer(s, pause, "pause")
                break
            try:
                n = s.socket.send(data)
            except BlockingIOError:
                self.events(s, True)
                return
            except OSError as e:
                if e.errno not in (errno.EPIPE, errno.ECONNRESET):
                    raise
                s.is_late()
                s.out.clear()  # what the daemon had to say is still to be read
                break
            s.is_late()
            s.sent += data[:n]
            s.out.popleft()
            if n < len(data):
                s.out.appendleft((0, data[n:]))
        self.events(s, False)
        if not s.out and not s.waiting and not s.shut:
            self.all_sent(s)

    def all_sent(self, s):
        if s.ending in ("any", "shut"):
            s.shut = True
            try:
                s.socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has closed already
        elif s.patience is not None:
            s.shut = True
            self.timer(s, s.patience, "leave")

    def readable(self, s):
        try:
            data = s.socket.recv(262144)
        except BlockingIOError:
            return
        except ConnectionResetError:
            # bytes that nobody read any more: what was left of a refused request
            if s.ending == "wait" and s.expected and not s.is_late():
                raise Wrong("reset with requests not answered") from None
            data = b""
        if not data:
            outcome = s.ended()
            if outcome:
                self.outcomes[outcome] += 1
            elif not s.answers:
                self.outcomes["closed" if s.ending == "any" else "left"] += 1
            self.drop(s)
            return
        for outcome in s.received(data):
            self.outcomes[outcome] += 1
        if s.ending == "wait" and not s.expected:
            if s.steps:
                s.next_step()
                self.pump(s)
            elif s.reader.pending():
                raise Wrong(f"bytes after the last answer: {bytes(s.reader.data[:200])!r}")
            elif not s.out:
                self.drop(s)

    def expired(self, s, what):
        if s.socket.fileno() < 0:
            return
        if what == "deadline":
            self.wrong(s, f"hangs: {self.args.deadline} s, {len(s.expected)} answers missing")
        elif what == "leave":
            self.outcomes["left"] += 1
            self.drop(s)
        else:
            s.waiting = False
            self.pump(s)

    def step(self):
        now = time.monotonic()
        wait = max(0.0, self.timers[0][0] - now) if self.timers else 1.0
        for key, mask in self.selector.select(min(wait, 1.0)):
            s = key.data
            try:
                if mask & selectors.EVENT_READ:
                    self.readable(s)
                if mask & selectors.EVENT_WRITE and s.socket.fileno() >= 0:
                    self.pump(s)
            except Late:
                self.outcomes["408, as we were slow"] += 1
                self.drop(s)
            except Wrong as e:
                self.wrong(s, str(e))
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now:
            _, _, s, what = heapq.heappop(self.timers)
            self.expired(s, what)
        if len(self.timers) > 20000:  # deadlines of sessions long over
            self.timers = [t for t in self.timers if t[2].socket.fileno() >= 0]
            heapq.heapify(self.timers)

    def run(self):
        began = time.monotonic()
        mark, self.middle = began, None
        while not self.errors or self.live:
            over = self.requests >= self.args.count or len(self.errors) >= 5 or \
                time.monotonic() - began > self.args.seconds
            while not over and self.live < self.args.lanes and self.requests < self.args.count:
                self.open()
            if over and not self.live:
                break
            self.step()
            if self.middle is None and self.requests >= self.args.count / 3:
                self.middle = self.daemon.rss()
            if self.daemon.process.poll() is not None:
                self.errors.append("the daemon is gone")
                break
            if time.monotonic() - mark > 20:
                mark = time.monotonic()
                print(f"{self.requests} requests, {mark - began:.0f} s, {self.daemon.rss()} KiB", flush=True)
        self.took = time.monotonic() - began


def report(storm, before):
    print(f"{storm.requests} requests in {storm.index - storm.args.at} connections, {storm.took:.0f} s, "
          f"the slowest {storm.slowest[0]:.2f} s ({storm.slowest[1]}); {sum(storm.outcomes.values())} outcomes:")
    for outcome, n in sorted(storm.outcomes.items()):
        print(f"  {n:8} {outcome}")
    work = storm.daemon.get("/status")[1]["scheduler"]
    print(f"{work['finished']} sequences finished, {work['cancelled']} cancelled, {work['prompt_tokens']} tokens of prompts, "
          f"{work['generated_tokens']} generated in {work['steps']} steps, {work['step_seconds_total']:.1f} s")
    after = storm.daemon.rss()
    print(f"KiB of their own (daemon, workers): before {before}, after a third {storm.middle}, after {after}")
    return after


def check_after(storm, args, before, files):
    daemon = storm.daemon
    if daemon.get("/health") != (200, {"status": "ready"}):
        raise Wrong("the daemon is not healthy")
    daemon.idle(files)
    after = report(storm, before)
    grown = after[0] - (storm.middle or before)[0]
    if not daemon.sanitized() and args.count >= 20000 and grown > args.growth:
        raise Wrong(f"the daemon grew by {grown} KiB")
    if storm.requests < args.count and not storm.errors:
        print(f"stopped after {args.seconds} s")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=2000)
    p.add_argument("--seed", default=str(random.SystemRandom().randrange(1 << 32)))
    p.add_argument("--at", type=int, default=0)
    p.add_argument("--seconds", type=float, default=36000)
    p.add_argument("--lanes", type=int, default=32)
    p.add_argument("--deadline", type=float, default=1800)
    p.add_argument("--growth", type=int, default=4096, help="KiB by which the daemon may grow after a third of the way")
    args = p.parse_args()
    sys.set_int_max_str_digits(0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    print(f"seed {args.seed}", flush=True)
    daemon = Daemon(SETTINGS)
    try:
        daemon.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
        before, files = daemon.rss(), daemon.files()
        storm = Storm(daemon, args)
        storm.run()
        if daemon.process.poll() is None:
            try:
                check_after(storm, args, before, files)
            except (Wrong, OSError) as e:
                storm.errors.append(str(e))
                print(f"WRONG: {e}")
        else:
            report(storm, before) if os.path.exists(f"/proc/{daemon.pid}/status") else None
        why = daemon.stop()
        if why:
            storm.errors.append(why)
            print(f"WRONG, at the daemon's end: {why}")
    finally:
        daemon.kill()
    sys.exit(1 if storm.errors else 0)


if __name__ == "__main__":
    main()
