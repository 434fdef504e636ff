#!/usr/bin/env python3
"""heddle beside Hugging Face transformers: the same model, the same prompts, one run, ratios.

    pip install torch 'transformers>=5.17' safetensors numpy
    python3 tests/bench/transformers_beside.py --build build [--threads 2] [--workers 1]

Both sides take turns (A B A B ...), so that a machine whose speed drifts slows both; medians are
printed. transformers gets the dequantised checkpoint in fp32, eager attention, its own cache, and
torch.set_num_threads(THREADS). heddle gets one worker with the same number of threads, and is asked over
its Unix socket as any client would, so its figures include HTTP.

  prefill  tokens of the prompt / time to the first token
  decode   (generated - 1) / (time of the last token - time of the first)
"""
import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from safetensors import safe_open
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import weights  # noqa: E402

torch.set_grad_enabled(False)


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


def load_transformers(path, directory):
    from safetensors.torch import save_file
    c = json.load(open(path + "/config.json"))
    c = {k: v for k, v in c.items() if k not in ("quantization_config", "expert_dtype")}
    json.dump(c | {"torch_dtype": "float32"}, open(directory + "/config.json", "w"))
    save_file({k: v.contiguous() for k, v in dequantise(path).items()}, directory + "/model.safetensors",
              metadata={"format": "pt"})
    return hf.DeepseekV4ForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def time_transformers(model, ids, new):
    """(seconds to the first token, seconds for the new - 1 after it, tokens)."""
    start = time.perf_counter()
    out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    token = int(out.logits[0, -1].argmax())
    first = time.perf_counter()
    tokens, cache = [token], out.past_key_values
    for _ in range(new - 1):
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        token = int(out.logits[0, -1].argmax())
        tokens.append(token)
    return first - start, time.perf_counter() - first, tokens


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("heddle")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def time_heddle(sock, ids, new):
    body = json.dumps(dict(prompt=ids, max_tokens=new, temperature=0, ignore_eos=True, stream=True,
                           return_token_ids=True))
    c = UnixConnection(sock)
    start = time.perf_counter()
    c.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    first, tokens = None, []
    for line in r:
        if not line.startswith(b"data: ") or b"[DONE]" in line:
            continue
        got = json.loads(line[6:])["choices"][0].get("token_ids") or []
        if got and first is None:
            first = time.perf_counter()
        tokens += got
    end = time.perf_counter()
    assert len(tokens) == new, (len(tokens), new)
    return first - start, end - first, tokens


def start_heddle(args, directory):
    sock = directory + "/h.sock"
    env = dict(os.environ, HEDDLE_WORKER=f"{args.build}/heddle-worker")
    command = [f"{args.build}/heddled", "-s", f"model.path={args.model}", "-s", f"listen.socket={sock}",
               "-s", f"daemon.pidfile={directory}/pid", "-s", f"fabric.workers={args.workers}",
               "-s", f"fabric.threads={max(1, args.threads // args.workers)}", "-s", f"log.target={directory}/log"]
    subprocess.run(command, env=env, check=True)
    return sock, int(open(directory + "/pid").read())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--model", default="models/heddle-mini")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json")
    args = p.parse_args()
    args.build = os.path.abspath(args.build)
    torch.set_num_threads(args.threads)
    rows, vocab = [], json.load(open(args.model + "/config.json"))["vocab_size"]
    with tempfile.TemporaryDirectory() as d:
        model = load_transformers(args.model, d)
        sock, pid = start_heddle(args, d)
        try:
            for context, new in ((1024, 64), (4096, 32)):
                ids = weights.prompt(7, context, vocab).tolist()
                time_heddle(sock, ids, 2)
                time_transformers(model, ids, 2)
                a, b = [], []
                for _ in range(args.rounds):
                    a.append(time_heddle(sock, ids, new))
                    b.append(time_transformers(model, ids, new))
                same = next((i for i, (x, y) in enumerate(zip(a[0][2], b[0][2])) if x != y), new)
                rate = [[context / r[0], (new - 1) / r[1]] for r in a], [[context / r[0], (new - 1) / r[1]] for r in b]
                for i, what in enumerate(("prefill", "decode")):
                    h, t = (statistics.median(x[i] for x in side) for side in rate)
                    rows.append(dict(context=context, what=what, heddle=h, transformers=t, ratio=h / t, same_tokens=same))
        finally:
            os.kill(pid, 15)
    print(f"{'context':>7} {'':8} {'heddle':>10} {'transformers':>13} {'ratio':>7}   tokens/s, median of "
          f"{args.rounds}, {args.threads} threads; the first tokens that agree: {[r['same_tokens'] for r in rows[::2]]}")
    for r in rows:
        print(f"{r['context']:7} {r['what']:8} {r['heddle']:10.1f} {r['transformers']:13.1f} {r['ratio']:7.2f}")
    if args.json:
        json.dump(rows, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
