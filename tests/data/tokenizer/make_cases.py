#!/usr/bin/env python3
"""Writes cases.bin.xz: strings that are hard to tokenise, with the ids that Hugging Face's
`tokenizers` (PyPI, 0.23) gives them for the bundled tokenizer and for DeepSeek's.

    make_cases.py MINI_TOKENIZER_JSON DEEPSEEK_TOKENIZER_JSON_XZ OUT

The file holds, xz-compressed: "HDTC", u32 count, then for each case u32 length and the text, and for
each of the two tokenizers u32 count and the ids as u32; all little-endian, in columns (all lengths,
all texts, ...), which compresses better. The seed is fixed: the same versions give the same file.
"""
import lzma
import random
import struct
import sys
import unicodedata

from tokenizers import Tokenizer

WORDS = """the of and God to LORD king house said unto shall Bruno secret code is 4492 What you're don't
I've we'll it'd She's HTTP foo_bar fooBar snake_case naïve café Straße İstanbul ſtrange ﬁne Æon
Ελλάδα Москва привет שלום مرحبا नमस्ते สวัสดี 你好 世界 こんにちは カタカナ 한국어 ﷽ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ｆｕｌｌ Ⅷ ½ ² ①
1 12 123 1234 12345 1234567 3.14 1e-07 0x9CD -1 +49 1,000,000 ١٢٣٤ १२३ 九十九 ٣٫١٤""".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\x85",
          "\xa0", "\u1680", "\u180e", "\u2000", "\u2003", "\u2007", "\u2009", "\u200a", "\u200b", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff"]
MARKS = ["e\u0301", "a\u0308\u0323", "\u0301", "n\u0303o", "\u093f", "\u0e33", "\u200d", "\u200c", "\ufe0f",
         "\u20e3", "1\ufe0f\u20e3", "\u034f", "\u1ab0", "\U0001e000"]
EMOJI = ["👩‍🚀", "🧑‍🚀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇩🇪🇫🇷", "👍🏽", "❤️", "☕", "🫠", "🪿", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "©", "™️"]
CONTROLS = [chr(c) for c in range(1, 32)] + ["\x00", "\x7f"] + [chr(c) for c in range(0x80, 0xa0)]
BIDI = ["\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202e", "\u2066", "\u2069", "\u061c"]
CJK = ["一", "龥", "龦", "㐀", "\u3040", "ゟ", "゠", "ヿ", "ㇰ", "、", "。", "「」", "𠀀", "豈", "々", "〇", "你好，世界！"]
PUNCT = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["…", "—", "“", "”", "«", "»", "¿", "¡", "€", "∑", "≠", "｜", "▁"]
CODE = ["int main(void)\n{\n\treturn 0;\n}\n", "for (i = 0; i < n; i++)\r\n\tx[i] += 1;\r\n",
        "def f(x):\n    return x  \n\n\nclass A:\n    pass\n", '{"a": [1, 2.5, -3e-7], "b": "\\u00e9"}',
        "SELECT * FROM t WHERE a>=10;--x", "<div class=\"a\">&nbsp;</div>", "#include <stdio.h>",
        "$ ls -la /usr/bin | grep '^d'", "a->b.c::d<e>()", "\\x9CD \\n \\\\ //", "https://a.b/c?d=e&f=%20#g"]
BROKEN = ["<think", "think>", "<｜User", "｜User｜>", "<|User|>", "<｜｜DSML｜｜tool_calls>", "<｜ User｜>", "<｜user｜>",
          "<｜begin_of_sentence｜>", "<｜begin▁of▁sentence", "</think", "<<think>>", "<think></think>", "｜DSML",
          "<｜DSML｜tool_calls>", "</｜DSML｜parameter>", "<｜place▁holder▁no▁1", "<｜place▁holder▁no▁1｜",
          "<｜place▁holder▁no▁12｜>", "<|EOT|>", "<|EOT|", "<｜▁pad▁｜><｜▁pad▁｜>"]


def every_category(rng):
    """A few characters of each general category, alone and between letters, digits and spaces."""
    by = {}
    for c in range(0x110000):
        cat = unicodedata.category(chr(c))
        if cat != "Cs":
            by.setdefault(cat, []).append(chr(c))
    for cat in sorted(by):
        for ch in rng.sample(by[cat], min(len(by[cat]), 24)):
            yield rng.choice([ch, "a" + ch + "b", " " + ch + " ", "1" + ch + "2", ch * 3, " " + ch + "x ", "." + ch])


def newer_characters():
    """Ends of the ranges assigned after Unicode 14 (see coordinator/token_unicode.def)."""
    for c in [0x1C89, 0xA7CB, 0xA7CD, 0xA7CE, 0x105C0, 0x10D40, 0x10D49, 0x10D4A, 0x10D69, 0x10D6E, 0x10EC2,
              0x11241, 0x113D4, 0x116D0, 0x11BF0, 0x11F50, 0x1B4E, 0x1B7F, 0x2427, 0x2429, 0x2FFC, 0x31E4, 0x31EF,
              0x0897, 0x0CF3, 0x0ECE, 0x1CC00, 0x1CCEF, 0x1CCF0, 0x2EBF0, 0x31350, 0x323AF, 0x323B0, 0x1E5D0,
              0x16100, 0x1FAE9, 0x1FBFF]:
        yield "a%cb" % c
        yield " %c%c1" % (c, c)


def chooser(rng, added):
    pools = [WORDS, WORDS, WORDS, SPACES, SPACES, MARKS, EMOJI, CONTROLS, BIDI, CJK, PUNCT, PUNCT, CODE, BROKEN, added]
    return lambda: rng.choice(rng.choice(pools))


def fixed(added):
    yield from ["", " ", "  ", "\n", "\r\n\r\n", "a", "\x00", "\U0010ffff", "\ufffd", "\ufffe", "\ue000"]
    for group in (WORDS, SPACES, MARKS, EMOJI, CONTROLS, BIDI, CJK, PUNCT, CODE, BROKEN, added):
        for s in group:
            yield s
    for s in SPACES + CONTROLS:
        yield "a" + s + "b"
        yield s + "a"
        yield "a" + s
        yield "a " + s + " b"
        yield s + s + "\n" + s + "."
    for n in range(1, 24):
        yield "1" * n
        yield " " * n + "x"
        yield "x" + " " * n
        yield "\n" * n + " " * (n % 5) + "y"
        yield "." * n + "\r\n" * (n % 3)
        yield "你" * n + "a"
        yield "ha" * n
    for n in (63, 64, 65, 255, 256, 257, 1000, 4000):
        for ch in ("a", "A", "z", " ", "\n", "0", "!", "é", "你", "🙂", "ab", "aab", "\u0301", "\t", "<", "=", "-"):
            yield ch * n
    for a, b in zip(added, added[1:]):
        yield a + b
        yield "x" + a + " " + b + "\n"
        yield " " + a + "1" + b[:-1]
        yield a[:-1] + b


def random_text(rng, added):
    pick = chooser(rng, added)
    while True:
        kind = rng.random()
        if kind < 0.6:
            yield "".join(pick() for _ in range(rng.randrange(1, 9)))
        elif kind < 0.8:
            yield " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 14))) + rng.choice(SPACES)
        elif kind < 0.9:
            yield "".join(chr(rng.choice([rng.randrange(0x20, 0x7f), rng.randrange(0xa0, 0x800),
                                          rng.randrange(0x800, 0xd800), rng.randrange(0x1d400, 0x1fc00)]))
                          for _ in range(rng.randrange(1, 10)))
        else:
            yield "".join(rng.choice("ab01 .'\n") for _ in range(rng.randrange(1, 24)))


def main():
    mini = Tokenizer.from_file(sys.argv[1])
    big = Tokenizer.from_str(lzma.open(sys.argv[2]).read().decode())
    rng = random.Random(20260)
    names = sorted({t.content for tok in (mini, big) for t in tok.get_added_tokens_decoder().values()})
    placeholders = [n for n in names if "place▁holder" in n]
    added = [n for n in names if n not in placeholders]
    cases = list(fixed(added)) + list(every_category(rng)) + list(newer_characters())
    for i in range(0, len(placeholders), 8):
        cases.append("".join(placeholders[i:i + 8]))
    more = random_text(rng, added + placeholders[:4])
    seen, out = set(), []
    for s in cases:
        if s not in seen:
            seen.add(s)
            out.append(s)
    while len(out) < 6000:
        s = next(more)
        if s not in seen:
            seen.add(s)
            out.append(s)
    texts = [s.encode() for s in out]
    data = b"HDTC" + struct.pack("<I", len(out))
    data += b"".join(struct.pack("<I", len(t)) for t in texts) + b"".join(texts)
    for tok in (mini, big):
        ids = [tok.encode(s, add_special_tokens=False).ids for s in out]
        data += b"".join(struct.pack("<I", len(i)) for i in ids)
        data += b"".join(struct.pack("<%dI" % len(i), *i) for i in ids)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2, "pb": 2}]
    with open(sys.argv[3], "wb") as f:
        f.write(lzma.compress(data, format=lzma.FORMAT_XZ, filters=filters))
    print(len(out), "cases,", len(data), "bytes")


main()
