"""A heddled of one's own, on the bundled model with two CPU workers: started, watched, stopped."""
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import judge
from answer import Reader, Wrong

BUILD = os.environ.get("HEDDLE_BUILDDIR", "build")
SOURCE = os.environ.get("HEDDLE_SRCDIR", ".")
SANITIZER = re.compile(rb"AddressSanitizer|LeakSanitizer|UndefinedBehavior|ThreadSanitizer|runtime error:|Assertion")


def raise_file_limit(wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            sys.exit(f"{wanted} open files are needed, the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def own_memory(pid):
    """Resident KiB of anonymous memory but for pools and states: these are mapped without
    reservation (nr), like malloc's arenas, but are larger than one."""
    kib = size = anonymous = 0
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            if line.startswith("Size:"):
                size = int(line.split()[1])
            elif line.startswith("Anonymous:"):
                anonymous = int(line.split()[1])
            elif line.startswith("VmFlags:") and not ("nr" in line.split() and size > 65536):
                kib += anonymous
    return kib


class Daemon:
    def __init__(self, settings, tcp=True):
        self.dir = tempfile.mkdtemp(prefix="heddle.", dir="/tmp")
        self.socket = self.dir + "/s"
        self.log = self.dir + "/log"
        self.port = None
        with open(self.dir + "/heddle.ini", "w") as f:
            f.write(f"[model]\npath = {SOURCE}/models/heddle-mini\n[listen]\nsocket = {self.socket}\n")
            f.write("tcp = 127.0.0.1:0\n" if tcp else "")
        args = [BUILD + "/heddled", "-f", "-c", self.dir + "/heddle.ini"]
        for s in ["fabric.workers=2", "fabric.progress_timeout=300s"] + settings:
            args += ["-s", s]
        env = dict(os.environ)
        env.setdefault("HEDDLE_WORKER", BUILD + "/heddle-worker")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        self.wait_ready()
        if tcp:
            self.port = int(re.search(rb"127\.0\.0\.1:(\d+)", self.log_bytes())[1])

    @property
    def pid(self):
        return self.process.pid

    def log_bytes(self):
        with open(self.log, "rb") as f:
            return f.read()

    def wait_ready(self):
        end = time.monotonic() + 120
        while True:
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail("the daemon does not become ready")
            time.sleep(0.05)  # between two looks; the wait itself is for the daemon

    def fail(self, why):
        sys.stderr.write(self.log_bytes().decode("utf-8", "replace")[-6000:])
        sys.exit(why)

    def get(self, path):
        """(status, value) of a GET on a connection of its own."""
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: heddle\r\nConnection: close\r\n\r\n".encode())

    def post(self, path, body):
        body = json.dumps(body).encode()
        return self.ask(f"POST {path} HTTP/1.1\r\nHost: heddle\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)

    def ask(self, data, seconds=120):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(seconds)
            s.connect(self.socket)
            s.sendall(data)
            reader = Reader()
            while True:
                piece = s.recv(65536)
                reader.feed(piece)
                answer = reader.take()
                if answer:
                    return answer.status, judge.strict_json(answer.body)
                if not piece:
                    raise Wrong("closed without an answer")

    def pids(self):
        """The daemon and its workers."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            return [self.pid] + [int(p) for p in f.read().split()]

    def rss(self):
        """Resident KiB of the daemon alone, and of its workers, without rings, the cache's pools and
        the states of sequences: these have a fixed size and become resident where first used."""
        sizes = [own_memory(pid) for pid in self.pids()]
        return sizes[0], sum(sizes[1:])

    def files(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def sanitized(self):
        with open(f"/proc/{self.pid}/maps") as f:
            maps = f.read()
        return "libasan" in maps or "libtsan" in maps

    def idle(self, files, seconds=60):
        """Waits until nothing is under way; says what is left over otherwise."""
        end = time.monotonic() + seconds
        while True:
            left = self.left_over(self.get("/status")[1], files)
            if not left:
                return
            if time.monotonic() > end:
                raise Wrong("not idle: " + "; ".join(left))
            time.sleep(0.05)

    def left_over(self, status, files):
        left = []
        if status["requests"] or status["scheduler"]["running"] or status["queue"]["waiting"]:
            left.append(f"requests {status['requests']}, running {status['scheduler']['running']}, "
                        f"waiting {status['queue']['waiting']}")
        for c in status["cache"]["classes"]:
            if c["free"] != c["pages"] or c["promised"]:
                left.append(f"{c['class']} pages: {c['free']} of {c['pages']} free, {c['promised']} promised")
        if sum(w["restarts"] for w in status["workers"]):
            left.append("workers were restarted")
        if self.files() > files:
            left.append(f"{self.files()} open files, {files} before")
        return left

    def stop(self):
        """Ends it by SIGTERM. Returns what was wrong, or None."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "it did not end within 120 s of SIGTERM"
        log = self.log_bytes()
        found = SANITIZER.search(log)
        if found:
            return log[max(0, found.start() - 500):found.start() + 8000].decode("utf-8", "replace")
        if code:
            return f"it left with {code}:\n" + log[-3000:].decode("utf-8", "replace")
        shutil.rmtree(self.dir)
        return None

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
