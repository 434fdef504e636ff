#!/usr/bin/env python3
"""Sums of several log-probabilities, whole texts and generations as EleutherAI's harness asks for them,
against what transformers finds (clients_lm_eval_known.json, tests/reference/make_lm_eval.py). The requests are
those of clients_lm_eval.json, with other prompts.

    clients_lm_eval_known.py ids | text | empty | rolling | until
"""
import json
import sys

from clients_known import SOURCE, TOLERANCE, call

BATCH = 4


def load(name):
    with open(f"{SOURCE}/tests/e2e/{name}.json", encoding="utf-8") as f:
        return json.load(f)


RECORDED = load("clients_lm_eval")["runs"]["tokens in batches"]
ASK_LOGPROBS = next(r for r in RECORDED if r["body"].get("echo"))
ASK_TEXT = next(r for r in RECORDED if "stop" in r["body"])


def ask(recorded, **changes):
    status, _, answer = call("POST", recorded["path"], recorded["body"] | changes, recorded["headers"])
    assert status == 200, f"{status} {answer}"
    return sorted(answer["choices"], key=lambda c: c["index"])


class Tally:
    """What was compared, and what was wrong."""

    def __init__(self):
        self.compared, self.wrong, self.worst, self.worst_sum = 0, [], 0.0, 0.0

    def same(self, what, said, right):
        self.compared += 1
        if said != right:
            self.wrong.append(f"{what}: {said!r}, not {right!r}")

    def scored(self, what, case, logprobs, generated):
        """One choice: each log-probability and their sum within TOLERANCE, and whether all are the best."""
        end = len(logprobs["token_logprobs"]) - generated
        self.same(f"{what}, tokens", end, len(case["ids"]))
        said = logprobs["token_logprobs"][case["context"]:end]
        tops = logprobs["top_logprobs"][case["context"]:end]
        off = [abs(a - b) for a, b in zip(said, case["logprobs"], strict=True)]
        off_sum = abs(sum(said) - sum(case["logprobs"]))
        self.worst, self.worst_sum = max(self.worst, *off), max(self.worst_sum, off_sum)
        if max(off) > TOLERANCE or off_sum > TOLERANCE:
            self.wrong.append(f"{what}: the sum {sum(said):.6f}, not {sum(case['logprobs']):.6f}; "
                              f"token {off.index(max(off))} of {len(off)} is off by {max(off):.1e}")
        greedy = all(value == max(top.values()) for value, top in zip(said, tops))
        self.same(f"{what}, greedy", greedy, case["greedy"])

    def report(self):
        print("\n".join(self.wrong))
        print(f"{self.compared} comparisons, {len(self.wrong)} wrong; log-probabilities differ by "
              f"{self.worst:.1e} at most, sums by {self.worst_sum:.1e}")
        assert self.compared > 0
        return len(self.wrong) > 0


def run_ids(tally, known):
    """Token ids in batches, one token generated, which does not count."""
    cases = known["pairs"]
    for first in range(0, len(cases), BATCH):
        some = cases[first:first + BATCH]
        for case, choice in zip(some, ask(ASK_LOGPROBS, prompt=[c["ids"] for c in some]), strict=True):
            tally.scored(case["why"], case, choice["logprobs"], 1)


def texts(known):
    """The pairs that a text can ask for."""
    found = [(c, "".join(c["text"])) for c in known["pairs"] if c["plain"]]
    assert len(found) > 10
    return found


def run_text(tally, known):
    """One text at a time: heddled's tokenizer instead of the harness'."""
    for case, text in texts(known):
        tally.scored(case["why"], case, ask(ASK_LOGPROBS, prompt=text)[0]["logprobs"], 1)


def run_empty(tally, known):
    """max_tokens 0, as other versions of the harness ask: only the prompt's log-probabilities."""
    for case, text in texts(known):
        (choice,) = ask(ASK_LOGPROBS, prompt=text, max_tokens=0)
        tally.same(f"{case['why']}, echo", choice["text"], text)
        tally.scored(case["why"], case, choice["logprobs"], 0)


def run_rolling(tally, known):
    for case in known["rolling"]:
        total = 0.0
        for number, window in enumerate(case["windows"]):
            logprobs = ask(ASK_LOGPROBS, prompt=[window["ids"]])[0]["logprobs"]
            tally.scored(f"window {number}", window, logprobs, 1)
            total += sum(logprobs["token_logprobs"][window["context"]:-1])
        right = sum(sum(w["logprobs"]) for w in case["windows"])
        print(f"the whole text has {total:.4f}, and should have {right:.4f}")
        tally.same("within the windows' tolerances", abs(total - right) < TOLERANCE * len(case["windows"]), True)


def run_until(tally, known):
    for case in known["until"]:
        (choice,) = ask(ASK_TEXT, prompt=case["context"], stop=case["until"], max_tokens=case["max_gen_toks"])
        tally.same(case["until"], choice["text"], case["text"])
        tally.same(f"{case['until']}, end", choice["finish_reason"], case["finish_reason"])


def main(name):
    tally = Tally()
    globals()[f"run_{name}"](tally, load("clients_lm_eval_known"))
    return tally.report()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
