"""Reads a checkpoint in the released format (FP8 and packed FP4 with power-of-two scales, several shards)
into plain float32, in the form in which make_fixtures.load() hands one to transformers."""
import json
import struct

import numpy as np

from weights import E2M1, E4M3, bf16_value

DTYPES = {"F32": "<f4", "I64": "<i8", "BF16": "<u2", "F8_E4M3": "u1", "F8_E8M0": "u1", "I8": "u1"}


def shard(path):
    """Name -> (type, stored array) of one safetensors file."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = bytearray(f.read())  # writable, as PyTorch wants it
    header.pop("__metadata__", None)
    return {name: (t["dtype"], np.frombuffer(data[slice(*t["data_offsets"])], DTYPES[t["dtype"]]).reshape(t["shape"]))
            for name, t in header.items()}


def value(name, stored):
    """The float32 (or int64) values of a tensor; its scale, if it has one, is another tensor."""
    kind, codes = stored[name]
    if kind == "BF16":
        return bf16_value(codes)
    if kind not in ("F8_E4M3", "I8"):
        return codes
    scale = np.exp2(stored[name.removesuffix("weight") + "scale"][1].astype(np.float64) - 127).astype(np.float32)
    if kind == "F8_E4M3":  # a scale for each block of 128 x 128
        rows, columns = codes.shape
        return E4M3[codes] * scale.repeat(128, 0).repeat(128, 1)[:rows, :columns]
    values = np.empty((codes.shape[0], codes.shape[1] * 2), np.float32)  # a scale for each 32 of a row
    values[:, 0::2], values[:, 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
    return values * scale.repeat(32, 1)


def read(directory):
    """(checkpoint as weights.build() gives one, configuration)."""
    with open(f"{directory}/model.safetensors.index.json", encoding="utf-8") as f:
        names = json.load(f)["weight_map"]
    stored = {}
    for file in sorted(set(names.values())):
        stored |= shard(f"{directory}/{file}")
    assert set(stored) == set(names)
    with open(f"{directory}/config.json", encoding="utf-8") as f:
        config = json.load(f)
    return {name: (kind, codes, None, value(name, stored)) for name, (kind, codes) in stored.items()
            if kind != "F8_E8M0"}, config
