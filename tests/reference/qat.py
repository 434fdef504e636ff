"""DeepSeek's quantisation-aware numerics, put into transformers' model at the places where its own
inference code rounds: attention rows and compressed entries have their 448 unrotated dims rounded to
e4m3 in groups of 64 (power-of-two scales); index queries and keys are rotated by the normalised
Hadamard matrix and rounded to e2m1 in groups of 32. transformers does neither.

All of these follow a rotation, so apply_rotary_pos_emb is where they are added: who calls it, and for
which of its tensors, says what is being rotated.
"""
import sys

import torch

NOPE = 448


def power_of_two_at_least(x):
    """Smallest 2^e >= x, by the bits, so that an exact power stays."""
    m, e = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), torch.where(m == 0.5, e - 1, e))


def round_fp8(x):
    g = x.unflatten(-1, (-1, 64))
    s = power_of_two_at_least(g.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448)
    return ((g / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s).flatten(-2)


def round_e2m1(x):
    """Nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code."""
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign((torch.round(a / step) * step).clamp_max(6), x)


def round_fp4(x):
    g = x.unflatten(-1, (-1, 32))
    s = power_of_two_at_least(g.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0 ** -126) / 6)
    return (round_e2m1((g / s).clamp(-6, 6)) * s).flatten(-2)


def hadamard(n):
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h * n ** -0.5


def install(hf):
    """Makes the models of transformers' module round from here on."""
    rotate = hf.apply_rotary_pos_emb
    h128 = hadamard(128)

    def rounding(x, *args, **kwargs):
        y = rotate(x, *args, **kwargs)
        frame = sys._getframe(1)
        owner, name = frame.f_locals.get("self"), frame.f_code.co_name
        if name != "forward":
            return y
        if isinstance(owner, hf.DeepseekV4Indexer):
            return round_fp4(y @ h128)
        is_row = isinstance(owner, hf.DeepseekV4Attention) and "kv" in frame.f_locals and \
            "attn_output" not in frame.f_locals
        if is_row or isinstance(owner, (hf.DeepseekV4CSACompressor, hf.DeepseekV4HCACompressor)):
            return torch.cat([round_fp8(y[..., :NOPE]), y[..., NOPE:]], -1)
        return y

    hf.apply_rotary_pos_emb = rounding
