#!/usr/bin/env python3
"""Peak memory of a worker beside the sum that /status states: weights, pages, scratch, states.

    make bench-memory
    python3 tests/bench/bench_memory.py --build build [--keep DIR]

For the bundled model and for the checkpoint of 2 GB of bench_load, with one worker and with two, bf16
caches, one sequence and pages for it: VmHWM (which has the shared memory in it) of each worker
after loading and after prompts of 2k, 8k and 32k tokens. The sum wants CONSTANT more: the process,
its libraries, thread stacks and the segments of the ring.
"""
import argparse
import os
import shutil
import subprocess
import tempfile

from heddle_here import Arguments, Heddle, Report

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
CONSTANT = 8 * MIB
POOLS, HUGE = 4, 2 * MIB  # raw rows, CSA, HCA and index keys lie on huge pages, where the kernel has them
PROMPTS = (2048, 8192, 32768)
SETTINGS = ("attention.kv=bf16", "attention.index_key=bf16", "schedule.max_sequences=1",
            "schedule.max_context=33024", "cache.memory=1G")


def peak(pid):
    """Bytes, and begins anew."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM:"):
            value = int(line.split()[1]) * 1024
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")
    return value


def pages(status, tokens):
    """Bytes of the compressed pages that a prompt fills; those of raw rows are freed on the way."""
    classes = {c["class"]: c for c in status["cache"]["classes"]}
    return sum(-(-tokens // c["tokens_per_page"]) * c["bytes_per_page"]
               for name, c in classes.items() if name != "raw" and c["tokens_per_page"])


def measure(report, name, build, model, workers):
    with Heddle(build, model, workers, 2 // workers, *SETTINGS) as h:
        state = h.status()
        each = state["workers"]
        memory = [w["memory"] for w in each]
        base = [m["weights_bytes"] + m["scratch_bytes"] + m["sequences_bytes"] + CONSTANT for m in memory]
        seen = {0: [peak(w["pid"]) for w in each]}
        for n in PROMPTS:
            h.time([5 + i * i * 7919 % 4000 for i in range(n)], 2)
            seen[n] = [peak(w["pid"]) for w in each]
        after = h.status()
        for r, m in enumerate(memory):
            who = f"{name}, worker {r + 1} of {workers}"
            print(f"  {who}: {m['weights_bytes'] / MIB:.1f} MiB weights, {m['pool_bytes'] / MIB:.1f} pages, "
                  f"{m['scratch_bytes'] / MIB:.1f} scratch, {m['sequences_bytes'] / MIB:.1f} states, "
                  f"{CONSTANT / MIB:.1f} constant")
            report.add(f"{who}, loaded", seen[0][r] / MIB, "MiB", "without pages", base[r] / MIB, most=1.1)
            for n in PROMPTS[:-1]:
                report.add(f"{who}, {n // 1024}k tokens", seen[n][r] / MIB, "MiB")
            report.add(f"{who}, {PROMPTS[-1] // 1024}k tokens", seen[PROMPTS[-1]][r] / MIB, "MiB", "the sum",
                       (base[r] + m["pool_bytes"]) / MIB, least=0.9, most=1.1)
            for a, b in zip(PROMPTS, PROMPTS[1:]):
                grown = pages(after, b) - pages(after, a) + POOLS * HUGE
                report.add(f"{who}, from {a // 1024}k to {b // 1024}k", (seen[b][r] - seen[a][r]) / MIB, "MiB",
                           "its pages, each pool's end a huge page", grown / MIB, most=1.1)


def main():
    p = Arguments(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--keep", help="where the checkpoint of 2 GB lies or is left")
    args = p.parse_args()
    mini = os.path.join(HERE, "../../models/heddle-mini")
    report = Report("memory", "Peak memory of a worker, one sequence with bf16 caches")
    for workers in (1, 2):
        measure(report, "mini", args.build, mini, workers)
    with tempfile.TemporaryDirectory(dir=".") as d:
        large = os.path.abspath(args.keep or d)
        subprocess.run([f"{args.build}/bench_load", "--make", large], check=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(f"{mini}/{name}", large)
        for workers in (1, 2):
            measure(report, "2 GB", args.build, large, workers)
    report.close()


if __name__ == "__main__":
    main()
