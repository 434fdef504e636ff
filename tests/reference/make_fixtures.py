#!/usr/bin/env python3
"""Expectations of Hugging Face's DeepseekV4ForCausalLM (fp32, eager, no cache) for the checkpoints of
cases.py. Anyone with PyTorch and transformers >= 5.17 can re-run it:

    python3 tests/reference/make_fixtures.py tests/data/model [CASE...]
    python3 tests/reference/make_fixtures.py --qat tests/data/model

With --qat the cases are QAT_CASES, twice: plain as NAME.*, and rounding as in DeepSeek's training (qat.py)
as NAME-qat.*.

Each case gives NAME.json (configuration, seed, element type, worker counts, lengths, greedy
continuations) and NAME.bin: for every prompt of L tokens, little endian,

    float  next[L-1]          log-probability of token t+1 after tokens 0..t
    uint16 best[L]            most probable next token
    float  margin[L]          its log-probability less the second's
    then for each CSA layer, and for each scored MoE layer, in layer order:
    uint16 set[L]             fold of the chosen entries (experts); 0 where nothing was left out
    half   gap[L]             distance of the worst chosen score from the best one left out, relative to
                              the largest score of the row; +inf where nothing was left out
The sets and gaps are there to show that a position which differs does so because of a near-tie.
"""
import json
import os
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases  # noqa: E402
import qat  # noqa: E402
import weights  # noqa: E402

torch.set_grad_enabled(False)


def fold_sets(chosen, valid):
    """XOR of mix(entry + 1) over each row's valid choices, low 16 bits."""
    m = weights.mix(chosen.astype(np.uint64) + np.uint64(1))
    m = np.where(valid, m, np.uint64(0))
    return (np.bitwise_xor.reduce(m, axis=-1) & np.uint64(0xFFFF)).astype(np.uint16)


class Recorder:
    """Replaces top-k by a stable one (ties to the lowest index) and notes sets and gaps by layer."""

    def __init__(self):
        self.found = {}
        self.site = None
        real = torch.Tensor.topk

        def topk(scores, k, dim=-1, largest=True, sorted=True):
            if self.site is None:
                return real(scores, k, dim=dim, largest=largest, sorted=sorted)
            values, indices = torch.sort(scores + 0.0, dim=-1, descending=True, stable=True)
            self.note(values, indices, k)
            return torch.return_types.topk((values[..., :k], indices[..., :k]))

        torch.Tensor.topk = topk
        torch.topk = topk

    def note(self, values, indices, k):
        if values.shape[-1] == 0:  # a prompt too short to have an entry
            return
        v, i = values.reshape(-1, values.shape[-1]).double().numpy(), indices.reshape(-1, values.shape[-1]).numpy()
        finite = np.isfinite(v)
        visible = finite.sum(-1)
        cut = visible > k
        gap = np.full(len(v), np.inf)
        if v.shape[-1] > k:
            largest = np.where(finite, np.abs(v), 0).max(-1)
            gap[cut] = (v[cut, k - 1] - v[cut, k]) / np.maximum(largest[cut], 1e-30)
        sets = np.where(cut, fold_sets(i[:, :k], finite[:, :k]), 0).astype(np.uint16)
        self.found[self.site] = (sets, np.minimum(gap, 60000).astype(np.float16))

    def watch(self, module, site):
        module.register_forward_pre_hook(lambda *_: setattr(self, "site", site))
        module.register_forward_hook(lambda *_: setattr(self, "site", None))


def load(checkpoint, config):
    """The dequantised checkpoint as transformers sees it."""
    c = {k: v for k, v in config.items() if k not in ("quantization_config", "expert_dtype")}
    c["torch_dtype"] = "float32"
    with tempfile.TemporaryDirectory() as d:
        json.dump(c, open(d + "/config.json", "w"))
        values = {n: torch.from_numpy(np.ascontiguousarray(v)) for n, (_, _, _, v) in checkpoint.items()}
        save_file(values, d + "/model.safetensors", metadata={"format": "pt"})
        model, info = hf.DeepseekV4ForCausalLM.from_pretrained(
            d, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: sorted(v)[:3] for k, v in info.items() if v}
    assert not bad, bad
    return model.eval()


def logprobs(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1).numpy()


def greedy(model, ids, steps):
    """[token, margin] of each step, recomputing the whole sequence each time."""
    out, ids = [], list(ids)
    for _ in range(steps):
        z = logprobs(model, ids)[-1]
        order = np.argsort(-z, kind="stable")
        out.append([int(order[0]), round(float(z[order[0]] - z[order[1]]), 6)])
        ids.append(int(order[0]))
    return out


def make(name, case, wanted, out_dir, numerics):
    """wanted: (seed, length) of each prompt; the longest, and greedy steps, only where they are cheap."""
    config, seed, base, worlds = case
    checkpoint = weights.build(config, seed, base)
    model = load(checkpoint, config)
    rec = Recorder.instance
    sites = []
    for n, layer in enumerate(model.model.layers):
        if config["compress_ratios"][n] == 4:
            rec.watch(layer.self_attn.compressor.indexer, ("index", n))
            sites.append(("index", n))
        if n >= config["num_hash_layers"]:
            rec.watch(layer.mlp.gate, ("route", n))
            sites.append(("route", n))
    sites.sort(key=lambda s: (s[0] != "index", s[1]))
    prompts = []
    with open(f"{out_dir}/{name}.bin", "wb") as f:
        for prompt_seed, length in wanted:
            ids = weights.prompt(prompt_seed, length, config["vocab_size"])
            rec.found.clear()
            z = logprobs(model, ids.tolist())
            order = np.argsort(-z, axis=-1, kind="stable")[:, :2]
            rows = np.arange(length)
            f.write(z[rows[:-1], ids[1:]].astype("<f4").tobytes())
            f.write(order[:, 0].astype("<u2").tobytes())
            f.write((z[rows, order[:, 0]] - z[rows, order[:, 1]]).astype("<f4").tobytes())
            for site in sites:
                sets, gap = rec.found.get(site, (np.zeros(length, np.uint16), np.full(length, np.inf, np.float16)))
                f.write(sets.astype("<u2").tobytes())
                f.write(gap.astype("<f2").tobytes())
            steps = 0 if len(wanted) > 20 else 8 if length <= 257 else 2 if length <= 1000 else 0
            prompts.append(dict(seed=prompt_seed, length=length, greedy=greedy(model, ids.tolist(), steps)))
            print(name, length, "margins", [round(m, 3) for _, m in prompts[-1]["greedy"]][:3], flush=True)
    doc = dict(config=config, numerics=numerics, seed=seed, base=base, worlds=worlds, checksum=f"{weights.checksum(checkpoint):016x}",
               index_layers=[n for k, n in sites if k == "index"], route_layers=[n for k, n in sites if k == "route"],
               prompts=prompts)
    with open(f"{out_dir}/{name}.json", "w") as f:
        json.dump(doc, f, indent=1)
        f.write("\n")


def main(args):
    out_dir = args[-1] if args[0] == "--qat" else args[0]
    Recorder.instance = Recorder()
    os.makedirs(out_dir, exist_ok=True)
    if args[0] == "--qat":
        for name, case in cases.QAT_CASES.items():
            make(name, case, cases.QAT_PROMPTS, out_dir, "plain")
        qat.install(hf)
        for name, case in cases.QAT_CASES.items():
            make(name + "-qat", case, cases.QAT_PROMPTS, out_dir, "qat")
        return
    for name in args[1:] or cases.CASES:
        case = cases.CASES[name]
        make(name, case, [(case[1], length) for length in cases.LENGTHS], out_dir, "plain")


if __name__ == "__main__":
    main(sys.argv[1:])
