"""What the benches in Python share: a heddled of the build with its workers, and the report."""
import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("heddle")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Heddle:
    """A heddled with its workers, started on entry and ended on exit."""

    def __init__(self, build, model, workers, threads, *settings):
        self.build, self.model, self.workers, self.threads = os.path.abspath(build), model, workers, threads
        self.settings = settings

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that __exit__ runs
        self.directory = tempfile.TemporaryDirectory()
        d = self.directory.name
        self.socket = d + "/h.sock"
        env = dict(os.environ, HEDDLE_WORKER=f"{self.build}/heddle-worker")
        settings = (f"model.path={self.model}", f"listen.socket={self.socket}", f"daemon.pidfile={d}/pid",
                    f"fabric.workers={self.workers}", f"fabric.threads={self.threads}", f"log.target={d}/log",
                    *self.settings)
        subprocess.run([f"{self.build}/heddled", *(x for s in settings for x in ("-s", s))], env=env, check=True)
        self.pid = int(open(d + "/pid").read())
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGTERM)
        while os.path.exists(f"/proc/{self.pid}"):
            time.sleep(0.02)
        self.directory.cleanup()

    def time(self, ids, new):
        """As Transformers.time: (seconds to the first token, seconds for the others, tokens)."""
        body = json.dumps(dict(prompt=ids, max_tokens=new, temperature=0, ignore_eos=True, stream=True,
                               return_token_ids=True))
        c = UnixConnection(self.socket)
        start = time.perf_counter()
        c.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            sys.exit(f"heddled: {r.status} {r.read()!r}")
        first, tokens = None, []
        for line in r:
            if not line.startswith(b"data: ") or b"[DONE]" in line:
                continue
            got = json.loads(line[6:])["choices"][0].get("token_ids") or []
            if got and first is None:
                first = time.perf_counter()
            tokens += got
        end = time.perf_counter()
        if len(tokens) != new:
            sys.exit(f"heddled: {len(tokens)} tokens where {new} were asked for")
        return first - start, end - first, tokens

    def status(self):
        c = UnixConnection(self.socket)
        c.request("GET", "/status")
        return json.load(c.getresponse())


class Arguments(argparse.ArgumentParser):
    """Answers wrong ones as tests/bench/bench.h does: a line of usage and exit status 64."""

    def error(self, message):
        print(" ".join(self.format_usage().split()) + f": {message}", file=sys.stderr)
        sys.exit(64)


class Report:
    """The table and the JSON of tests/bench/report.h."""

    def __init__(self, name, title):
        self.name, self.rows = name, []
        print(f"\n{title}\n\n{'':44} {'value':>12} {'':9} {'ratio':>9}  {'target':10}", flush=True)

    def add(self, what, value, unit, beside=None, beside_value=None, least=0, most=0):
        judged = value / beside_value if beside else value
        row = dict(what=what, value=value, unit=unit)
        if beside:
            row |= dict(beside=beside, beside_value=beside_value, ratio=judged)
        if least:
            row |= dict(least=least)
        if most:
            row |= dict(most=most)
        if least or most:
            row |= dict(met=judged >= least and (not most or judged <= most))
        self.rows.append(row)
        target = f"<= {most}" if most else f">= {least}" if least else ""
        print(f"{what:44} {value:12.4g} {unit:9} {f'{judged:.2f}' if beside else '':>9}  "
              f"{target:10}{'' if row.get('met', True) else ' MISSED'}"
              f"{f'  of {beside}' if beside else ''}", flush=True)

    def close(self):
        missed = sum(not r.get("met", True) for r in self.rows)
        if missed:
            print(f"{missed} of {len(self.rows)} rows miss their target")
        if os.environ.get("HEDDLE_BENCH_DIR"):
            path = f"{os.environ['HEDDLE_BENCH_DIR']}/{self.name}.json"
            with open(path + ".part", "w") as f:
                json.dump(dict(bench=self.name, rows=self.rows), f, indent=1)
            os.replace(path + ".part", path)
