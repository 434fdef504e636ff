#!/usr/bin/env python3
"""Writes coordinator/token_unicode.def: characters that Hugging Face's regular expressions (Unicode
16) count as letters, marks, numbers, punctuation or symbols and Unicode 14 (PCRE2 10.40 to 10.42)
does not know yet. Needs `tokenizers`, and a Python whose unicodedata is version 14 (3.11)."""
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

HEAD = """/*
 * UNI(category, first, last): characters assigned between Unicode 14, which PCRE2 10.40 knows, and
 * Unicode 16, by which Hugging Face's tokenizers split. Listing one that PCRE2 knows already does no
 * harm. Written by tests/data/tokenizer/make_unicode.py.
 */
"""


def members(category):
    """Code points that the class removes from a string of all of them."""
    split = pre_tokenizers.Split(Regex(r"\p{%s}+" % category), "removed")
    found = set()
    for base in range(0, 0x110000, 4096):
        points = [c for c in range(base, base + 4096) if not 0xD800 <= c < 0xE000]
        if points:
            kept = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, points))) for c in piece}
            found.update(c for c in points if c not in kept)
    return found


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    out = HEAD
    for category in "LMNPS":
        known = {c for c in range(0x110000) if unicodedata.category(chr(c))[0] == category}
        theirs = members(category)
        moved = known - theirs - set(range(0xD800, 0xE000))
        assert not moved, (category, moved)
        ranges = []
        for c in sorted(theirs - known):
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
        out += "".join("UNI(%s, 0x%x, 0x%x)\n" % (category, a, b) for a, b in ranges)
    sys.stdout.write(out)


main()
