#!/usr/bin/env python3
"""Runs the blocks of docs/examples.md and compares what they print with the block below each.

    clients_docs.py LANGUAGE      sh, python, or "python with-tools"

Paths and addresses of the page are replaced by those of the test's daemon ($SOCKET, $TCP, $NGINX;
the file $QUESTION). In an expected text "…" stands for anything within a line.
"""
import os
import re
import subprocess
import sys

from clients_known import SOURCE

REPLACED = {"/run/heddle/heddle.sock": "SOCKET", "127.0.0.1:8000": "TCP", "127.0.0.1:8080": "NGINX",
            "/tmp/question.json": "QUESTION"}


def blocks(path):
    """(line, language, text) of each fenced block."""
    found, inside = [], None
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        fence = re.fullmatch(r"```(.*)\n", line)
        if not fence:
            if inside is not None:
                found[-1][2].append(line)
        elif inside is None:
            inside = fence[1]
            found.append((number, inside, []))
        else:
            assert fence[1] == "", f"line {number}: a block is not closed"
            inside = None
    assert inside is None
    return [(number, language, "".join(lines)) for number, language, lines in found]


def adapt(text):
    return re.sub("|".join(map(re.escape, REPLACED)), lambda m: os.environ[REPLACED[m[0]]], text)


def run(language, text):
    command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300)
    return done.returncode, done.stdout


def matches(expected, printed):
    pattern = ".*".join(re.escape(part) for part in expected.rstrip("\n").split("…"))
    return re.fullmatch(pattern, printed.replace("\r", "").rstrip("\n")) is not None


def main(wanted):
    page = blocks(f"{SOURCE}/docs/examples.md")
    ran, failed = 0, 0
    for (line, language, text), (_, next_language, expected) in zip(page, page[1:] + [(0, "", "")]):
        assert language in ("text", "sh", "python", "python with-tools", "nginx", "ini"), f"line {line}: {language}"
        if language != wanted:
            continue
        assert next_language == "text", f"line {line}: no output follows"
        code, printed = run(language.split()[0], adapt(text))
        ran += 1
        if code or not matches(expected, printed):
            failed += 1
            print(f"docs/examples.md:{line}: exit code {code}, printed\n{printed}\nexpected\n{expected}")
    assert ran > 0, f"no block is {wanted}"
    print(f"{ran} blocks ran, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
