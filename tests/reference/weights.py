"""Random checkpoints from counters: every element is a function of (seed, tensor name, index).

The same generator stands in C (tests/model/gen.c), so a fixture holds a configuration, a seed and
expectations, never weights. All arithmetic is exact or rounds once in IEEE double and once to float,
so both languages agree to the last bit. Keep the two in step: test_gen compares checksums.
"""
import math

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
M64 = (1 << 64) - 1


def mix(x):
    """The finaliser of splitmix64, on a numpy array of uint64."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def mix_int(x):
    return int(mix(np.array([x & M64], dtype=np.uint64))[0])


def key_of(name, seed):
    """FNV-1a of the name, folded with the seed."""
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    return h ^ mix_int(seed)


def bits(name, seed, n):
    with np.errstate(over="ignore"):
        i = np.arange(1, n + 1, dtype=np.uint64)
        return mix(np.uint64(key_of(name, seed)) + i * GOLDEN)


def unit(name, seed, n):
    """n doubles in [-1, 1), multiples of 2^-23."""
    return ((bits(name, seed, n) >> np.uint64(40)).astype(np.float64) - 8388608.0) / 8388608.0


def bf16(x):
    """Round to nearest even to bfloat16; returns the uint16 codes."""
    u = x.astype(np.float32).view(np.uint32)
    return ((u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bf16_value(codes):
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


E4M3 = np.array([
    math.copysign((m / 8 + (1 if e else 0)) * 2.0 ** ((e or 1) - 7), -1 if s else 1) if (e, m) != (15, 7) else math.nan
    for s in (0, 1) for e in range(16) for m in range(8)], dtype=np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


# How a tensor is drawn: by the last parts of its name. (kind, amplitude or std, gain)
#   linear: uniform with standard deviation gain / sqrt(columns)
#   flat:   uniform with the given standard deviation
#   around: uniform in 1 +- 0.5
RULES = [
    ("head.weight", "linear", 3.0), ("embed.weight", "flat", 1.0),
    ("norm.weight", "around", 0.5), ("_fn", "linear", 1.0), ("_base", "flat", 1.0), ("_scale", "around", 0.5),
    ("attn_sink", "flat", 1.0), (".ape", "flat", 0.5), ("gate.bias", "flat", 0.3),
    ("wo_a.weight", "linear", 2.0), ("wo_b.weight", "linear", 2.0), ("wgate.weight", "linear", 2.0),
    ("gate.weight", "linear", 2.0), ("w1.weight", "linear", 3.0), ("w3.weight", "linear", 3.0),
    ("weight", "linear", 1.0),
]
KEEP32 = ("_fn", "_base", "_scale", "attn_sink", ".ape", "gate.bias")


def draw(name, shape, seed):
    """The float32 values of a tensor before it is stored."""
    n = int(np.prod(shape))
    kind, amount = next((k, a) for suffix, k, a in RULES if name.endswith(suffix))
    if kind == "around":
        return (1.0 + amount * unit(name, seed, n)).astype(np.float32).reshape(shape)
    std = amount if kind == "flat" else amount / math.sqrt(shape[-1])
    amp = float(np.float32(std * math.sqrt(3.0)))
    return (unit(name, seed, n) * amp).astype(np.float32).reshape(shape)


def hash_experts(name, seed, vocab, experts, k):
    """k distinct experts a token: the first k of a Fisher-Yates shuffle driven by the counters."""
    r = bits(name, seed, vocab * k).reshape(vocab, k)
    out = np.empty((vocab, k), dtype=np.int64)
    for t in range(vocab):
        ids = list(range(experts))
        for j in range(k):
            s = j + int(r[t, j] >> np.uint64(32)) % (experts - j)
            ids[j], ids[s] = ids[s], ids[j]
        out[t] = ids[:k]
    return out


def half_log2(k):
    """ceil(log2(k)) / 2 rounded down, in integers: the exponent of about sqrt(k)."""
    return (k - 1).bit_length() // 2


def draw_fp8(name, shape, seed):
    """Codes uniform over all e4m3 values but NaN (rms about 101), scales 4 binades wide per block."""
    rows, cols = shape
    b = (bits(name, seed, rows * cols) >> np.uint64(40)).astype(np.uint8).reshape(shape)
    b = np.where((b & 0x7F) == 0x7F, b ^ 1, b).astype(np.uint8)
    grid = (-(-rows // 128), -(-cols // 128))
    sname = name[:-len("weight")] + "scale"
    s = (bits(sname, seed, grid[0] * grid[1]) >> np.uint64(40)).reshape(grid) % np.uint64(3)
    s = (s.astype(np.int64) + 127 - 7 - half_log2(cols)).astype(np.uint8)
    scale = np.exp2(s.astype(np.float64) - 127).astype(np.float32)
    full = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :cols]
    return b, s, E4M3[b] * full


def draw_fp4(name, shape, seed):
    """Codes uniform over all sixteen e2m1 values (rms about 2.9), scales 3 binades wide per 32."""
    rows, cols = shape
    b = (bits(name, seed, rows * cols // 2) >> np.uint64(40)).astype(np.uint8).reshape(rows, cols // 2)
    sname = name[:-len("weight")] + "scale"
    s = (bits(sname, seed, rows * cols // 32) >> np.uint64(40)).reshape(rows, cols // 32) % np.uint64(3)
    s = (s.astype(np.int64) + 127 - 1 - half_log2(cols)).astype(np.uint8)
    values = np.empty(shape, dtype=np.float32)
    values[:, 0::2], values[:, 1::2] = E2M1[b & 15], E2M1[b >> 4]
    return b, s, values * np.repeat(np.exp2(s.astype(np.float64) - 127).astype(np.float32), 32, 1)


def shapes(c):
    """Name -> shape of every tensor of a configuration, in checkpoint order."""
    d, H, V, G = c["hidden_size"], c["num_attention_heads"], c["vocab_size"], c["o_groups"]
    ol, ql, Hi = c["o_lora_rank"], c["q_lora_rank"], c["index_n_heads"]
    E, inter, k = c["n_routed_experts"], c["moe_intermediate_size"], c["num_experts_per_tok"]
    w = {"embed.weight": (V, d), "norm.weight": (d,), "head.weight": (V, d),
         "hc_head_fn": (4, 4 * d), "hc_head_base": (4,), "hc_head_scale": (1,)}
    for n in range(c["num_hidden_layers"]):
        p, r = f"layers.{n}.", c["compress_ratios"][n]
        for s in ("attn", "ffn"):
            w |= {f"{p}{s}_norm.weight": (d,), f"{p}hc_{s}_fn": (24, 4 * d), f"{p}hc_{s}_base": (24,),
                  f"{p}hc_{s}_scale": (3,)}
        a = p + "attn."
        w |= {a + "wq_a.weight": (ql, d), a + "q_norm.weight": (ql,), a + "wq_b.weight": (H * 512, ql),
              a + "wkv.weight": (512, d), a + "kv_norm.weight": (512,), a + "wo_a.weight": (G * ol, H * 512 // G),
              a + "wo_b.weight": (d, G * ol), a + "attn_sink": (H,)}
        if r:
            m = 2 if r == 4 else 1
            w |= {a + "compressor.ape": (r, m * 512), a + "compressor.wkv.weight": (m * 512, d),
                  a + "compressor.wgate.weight": (m * 512, d), a + "compressor.norm.weight": (512,)}
        if r == 4:
            i = a + "indexer."
            w |= {i + "wq_b.weight": (Hi * 128, ql), i + "weights_proj.weight": (Hi, d),
                  i + "compressor.ape": (4, 256), i + "compressor.wkv.weight": (256, d),
                  i + "compressor.wgate.weight": (256, d), i + "compressor.norm.weight": (128,)}
        f = p + "ffn."
        w[f + "gate.weight"] = (E, d)
        w |= {f + "gate.tid2eid": (V, k)} if n < c["num_hash_layers"] else {f + "gate.bias": (E,)}
        for e in [f"experts.{j}." for j in range(E)] + ["shared_experts."]:
            w |= {f + e + "w1.weight": (inter, d), f + e + "w3.weight": (inter, d), f + e + "w2.weight": (d, inter)}
    return w


DENSE = ("attn.wq_a.weight", "attn.wq_b.weight", "attn.wkv.weight", "attn.wo_a.weight", "attn.wo_b.weight")


def stored_type(name, quantised, base):
    """Element type a tensor is stored as: base is BF16, F16 or F32."""
    if name.endswith("tid2eid"):
        return "I64"
    if quantised and ".experts." in name:
        return "FP4"
    if quantised and (name.endswith(DENSE) or "shared_experts" in name):
        return "FP8"
    return "F32" if name.endswith(KEEP32) else base


def build(c, seed, base="BF16"):
    """Name -> (type, stored array, scale codes or None, float32 values): a whole checkpoint."""
    quantised = "quantization_config" in c
    out = {}
    for name, shape in shapes(c).items():
        kind = stored_type(name, quantised, base)
        if kind == "I64":
            v = hash_experts(name, seed, shape[0], c["n_routed_experts"], shape[1])
            out[name] = (kind, v, None, v)
        elif kind == "FP4":
            q, s, v = draw_fp4(name, shape, seed)
            out[name] = (kind, q, s, v)
        elif kind == "FP8":
            q, s, v = draw_fp8(name, shape, seed)
            out[name] = (kind, q, s, v)
        else:
            v = draw(name, shape, seed)
            if kind == "BF16":
                q = bf16(v)
                v = bf16_value(q).reshape(shape)
            elif kind == "F16":
                q = v.astype(np.float16)
                v = q.astype(np.float32)
            else:
                q = v
            out[name] = (kind, q, None, v)
    return out


def prompt(seed, length, vocab):
    """Token ids: 0, then counters. The first `n` ids of a longer prompt are those of a shorter."""
    r = bits("prompt", seed, length)
    ids = 2 + ((r >> np.uint64(32)) % np.uint64(vocab - 2)).astype(np.int64)
    ids[0] = 0
    return ids


def checksum(checkpoint):
    """Order-independent over tensors: what test_gen compares with C's."""
    total = 0
    for name, (_, q, s, _) in checkpoint.items():
        h = key_of(name, 0)
        for b in (q, s):
            if b is None:
                continue
            data = np.frombuffer(np.ascontiguousarray(b).tobytes(), dtype=np.uint8).astype(np.uint64)
            with np.errstate(over="ignore"):
                i = np.arange(1, len(data) + 1, dtype=np.uint64)
                h = (h + int(np.sum(mix(data + i * np.uint64(256))))) & M64
        total ^= mix_int(h)
    return total
