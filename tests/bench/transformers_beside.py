#!/usr/bin/env python3
"""heddle beside Hugging Face transformers: the same model, prompts and CPUs, one run, ratios.

    pip install torch 'transformers>=5.17' safetensors numpy
    make bench-transformers [HEDDLE_PYTHON=/path/to/python]
    python3 tests/bench/transformers_beside.py --build build [--threads 2] [--workers 1,2]

Both sides are held to the same THREADS CPUs and take turns (A B A B ...) on a fresh prompt each
round, so that a machine whose speed drifts slows both; the rows are medians of rates over the rounds,
as a table and as JSON of the kind tests/bench/report.h writes ($HEDDLE_BENCH_DIR/transformers.json).

transformers gets the dequantised checkpoint, its own cache and model calls without generate(), which
adds its own time to each token. Which of its settings is fastest is tried first, for each context
and each of the two phases, and that one runs beside heddle: fp32 or bf16, its experts in a grouped
or a plain loop, the prompt whole or in chunks (generate's prefill_chunk_size). The prompt as a
whole in fp32, its default, runs beside heddle as well. SDPA is asked for and refused by
transformers: the model's attention has sinks.

heddle gets W workers of THREADS / W threads and is asked over its Unix socket as any client would, so
its figures include HTTP. The tokens of both are compared: greedy, the same model, other roundings.

  prefill  tokens of the prompt / time to the first token
  decode   (generated - 1) / (time of the last token - time of the first)
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import warnings


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from transformers import logging as hf_logging
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf
except ImportError as missing:
    skip(f"{missing}; {sys.executable} needs torch, transformers >= 5.17, safetensors and numpy "
         "(HEDDLE_PYTHON names another python)")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import weights  # noqa: E402
from heddle_here import Arguments, Heddle, Report  # noqa: E402

warnings.filterwarnings("ignore", category=FutureWarning)  # transformers renames an argument
hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()

CONTEXTS = ((1024, 64), (4096, 32))  # tokens of the prompt, tokens generated
LEAST = {(1024, "decode"): 12, (4096, "decode"): 12, (4096, "prefill"): 4}
WHOLE = 1 << 30
DEFAULT = ("fp32", "grouped_mm", WHOLE)
SETTINGS = (DEFAULT, ("fp32", "grouped_mm", 512), ("fp32", "grouped_mm", 256), ("fp32", "grouped_mm", 128),
            ("fp32", "eager", 256), ("bf16", "grouped_mm", 256))


def say_setting(s):
    return f"transformers, {s[0]}, experts {s[1]}, " + ("prompt whole" if s[2] == WHOLE else f"chunks of {s[2]}")


def dequantise(path):
    """name -> float32 tensor (or int64 table) of a released-format checkpoint."""
    raw = {}
    for shard in sorted(set(json.load(open(f"{path}/model.safetensors.index.json"))["weight_map"].values())):
        with safe_open(f"{path}/{shard}", "pt") as f:
            raw |= {k: f.get_tensor(k) for k in f.keys()}
    out = {}
    for name, t in raw.items():
        if name.endswith(".scale"):
            continue
        scale = raw.get(name[:-len("weight")] + "scale") if name.endswith("weight") else None
        if scale is None:
            out[name] = t if t.dtype == torch.int64 else t.float()
            continue
        s = torch.exp2(scale.view(torch.uint8).float() - 127)
        if t.dtype == torch.int8:
            q = t.view(torch.uint8)
            v = torch.from_numpy(weights.E2M1)[torch.stack([q & 15, q >> 4], -1).long()].flatten(-2)
            out[name] = v * s.repeat_interleave(32, -1)
        else:
            full = s.repeat_interleave(128, 0).repeat_interleave(128, 1)[:t.shape[0], :t.shape[1]]
            out[name] = t.float() * full
    return out


class Transformers:
    """The model in each dtype, and a greedy run under one of the SETTINGS."""

    def __init__(self, path, directory):
        c = json.load(open(path + "/config.json"))
        c = {k: v for k, v in c.items() if k not in ("quantization_config", "expert_dtype")}
        json.dump(c | {"torch_dtype": "float32"}, open(directory + "/config.json", "w"))
        save_file({k: v.contiguous() for k, v in dequantise(path).items()}, directory + "/model.safetensors",
                  metadata={"format": "pt"})
        self.directory = directory
        self.models = {"fp32": self.load(torch.float32, "eager"), "bf16": self.load(torch.bfloat16, "eager")}

    def load(self, dtype, attention):
        return hf.DeepseekV4ForCausalLM.from_pretrained(self.directory, dtype=dtype,
                                                        attn_implementation=attention).eval()

    def refusal_of_sdpa(self):
        try:
            self.load(torch.float32, "sdpa")
        except (ValueError, ImportError) as e:
            return str(e).split(". ")[0]
        return None

    @torch.inference_mode()
    def time(self, setting, ids, new):
        """(seconds to the first token, seconds for the new - 1 after it, tokens)."""
        dtype, experts, chunk = setting
        model, past = self.models[dtype], None
        if model.config._experts_implementation != experts:
            model.set_experts_implementation(experts)
        start = time.perf_counter()
        for i in range(0, len(ids), chunk):
            out = model(torch.tensor([ids[i:i + chunk]]), past_key_values=past, use_cache=True, logits_to_keep=1)
            past = out.past_key_values
        tokens = [int(out.logits[0, -1].argmax())]
        first = time.perf_counter()
        for _ in range(new - 1):
            out = model(torch.tensor([tokens[-1:]]), past_key_values=past, use_cache=True)
            tokens.append(int(out.logits[0, -1].argmax()))
        return first - start, time.perf_counter() - first, tokens


def rates(ran, context, new):
    return dict(prefill=context / ran[0], decode=(new - 1) / ran[1])


def agreeing(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))


def prompts(context, vocab):
    """Fresh prompts without end, so that no cache of either side has seen one."""
    seed = 7
    while True:
        yield weights.prompt(seed, context, vocab).tolist()
        seed += 1


def try_settings(theirs, ids):
    """phase -> the fastest of SETTINGS for a prompt like ids, from one short run of each."""
    seen = {s: rates(theirs.time(s, ids, 10), len(ids), 10) for s in SETTINGS}
    for s, r in seen.items():
        print(f"  tried {say_setting(s):60} prefill {r['prefill']:7.1f}  decode {r['decode']:6.1f} tokens/s")
    return {phase: max(seen, key=lambda s: seen[s][phase]) for phase in ("prefill", "decode")}


def measure(report, args, ours, theirs, context, new, source):
    """The rows of one context."""
    fastest = try_settings(theirs, next(source))
    sides = list(ours) + sorted({DEFAULT, *fastest.values()})
    got, same = {s: [] for s in sides}, []
    for h in ours:
        h.time(next(source), 4)
    for _ in range(args.rounds):
        ids, tokens = next(source), []
        for s in sides:
            ran = s.time(ids, new) if isinstance(s, Heddle) else theirs.time(s, ids, new)
            got[s].append(rates(ran, context, new))
            tokens.append(ran[2])
        same += [agreeing(t, tokens[sides.index(DEFAULT)]) for t in tokens[:len(ours)]]
    middle = {s: {p: statistics.median(r[p] for r in got[s]) for p in ("prefill", "decode")} for s in sides}
    for h in ours:
        for phase in ("prefill", "decode"):
            for s in dict.fromkeys((fastest[phase], DEFAULT)):
                report.add(f"{phase}, {context} tokens, {h.workers} x {h.threads} threads",
                           middle[h][phase], "tokens/s", say_setting(s), middle[s][phase],
                           LEAST.get((context, phase), 0))
    report.add(f"first of {new} tokens that agree, {context} tokens", min(same), "tokens", least=1)


def main():
    p = Arguments(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--model", default=os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                   "../../models/heddle-mini"))
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--workers", default="1,2", help="numbers of workers, each measured")
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()
    args.build = os.path.abspath(args.build)
    cpus = sorted(os.sched_getaffinity(0))[:args.threads]
    if len(cpus) < args.threads:
        skip(f"{args.threads} threads on {len(cpus)} CPUs would measure the scheduler")
    os.sched_setaffinity(0, cpus)  # for the threads and processes of both, which inherit it
    torch.set_num_threads(args.threads)
    vocab = json.load(open(args.model + "/config.json"))["vocab_size"]
    report = Report("transformers", f"heddle beside Hugging Face transformers on CPUs {cpus}, medians of {args.rounds}")
    with tempfile.TemporaryDirectory() as d, contextlib.ExitStack() as stack:
        theirs = Transformers(args.model, d)
        print(f"  SDPA: {theirs.refusal_of_sdpa() or 'taken by this version, not measured'}")
        ours = [stack.enter_context(Heddle(args.build, args.model, int(w), max(1, args.threads // int(w)))) for w in args.workers.split(",")]
        for context, new in CONTEXTS:
            measure(report, args, ours, theirs, context, new, prompts(context, vocab))
    report.close()


if __name__ == "__main__":
    main()
