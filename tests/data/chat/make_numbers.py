#!/usr/bin/env python3
"""Writes numbers.txt: numbers as JSON may hold them and as Python prints them after reading them, one
pair a line. The seed is fixed."""
import json
import random
import struct
import sys

FIXED = """0 -0 0.0 -0.0 1 -1 10 1.0 1e0 1E5 1e5 100000.0 0.1 0.10 1e-7 1.5e-5 0.0001 0.00001 1e15 1e16 1e17
123456789012345678901234567890 9007199254740993 9007199254740993.0 1e22 1e23 5e-324 2.2250738585072014e-308
1.7976931348623157e308 1e-400 0.30000000000000004 123456.789e3 1e+2 1e-0 4.35 2.5e-1 999999999999999.9
9999999999999998.0 12345678901234567.0 0.000123456789 3.0e-5 1e100""".split()


def main():
    rng = random.Random(7)
    out = list(FIXED)
    for e in range(-1074, 1024, 3):
        out.append("%.17e" % 2.0 ** e if e > -1022 else repr(2.0 ** e))
    while len(out) < 1500:
        v = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0]
        if v == v and abs(v) != float("inf"):
            out.append("%.17e" % v)
        out.append("%.*f" % (rng.randrange(1, 8), rng.uniform(-1e5, 1e5)))
    with open(sys.argv[1], "w") as f:
        for text in out:
            f.write("%s %s\n" % (text, json.dumps(json.loads(text))))


main()
