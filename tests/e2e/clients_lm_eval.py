#!/usr/bin/env python3
"""Replays the requests of EleutherAI's harness from clients_lm_eval.json (clients_lm_eval_record.py says how
they came there), computes from the answers what it computes, and compares with what is right.

    clients_lm_eval.py RUN        one of the fixture's runs
"""
import json
import sys

from clients_known import SOURCE, TOLERANCE, call


def loglikelihood(choice, context):
    """As LocalCompletionsAPI.parse_logprobs(): without the token that was generated."""
    values = choice["logprobs"]["token_logprobs"][context:-1]
    tops = choice["logprobs"]["top_logprobs"][context:-1]
    return sum(values), all(value == max(top.values()) for value, top in zip(values, tops))


def differences(body, right, choice):
    if "text" in right:
        text = choice["message"]["content"] if "messages" in body else choice["text"]
        return [] if text == right["text"] else [f"said {text!r}, not {right['text']!r}"]
    total, greedy = loglikelihood(choice, right["context"])
    wrong = []
    if abs(total - right["sum"]) > TOLERANCE:
        wrong.append(f"the sum is {total:.6f}, not {right['sum']:.6f}")
    if greedy != right["greedy"]:
        wrong.append(f"greedy is {greedy}, not {right['greedy']}")
    return wrong


def main(name):
    fixture = json.load(open(f"{SOURCE}/tests/e2e/clients_lm_eval.json", encoding="utf-8"))
    compared, failed, worst = 0, 0, 0.0
    for number, request in enumerate(fixture["runs"][name]):
        status, _, answer = call("POST", request["path"], request["body"], request["headers"])
        if status != 200:
            sys.exit(f"request {number}: {status} {answer}")
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        assert len(choices) == len(request["right"]), f"request {number}: {len(choices)} choices"
        for right, choice in zip(request["right"], choices):
            compared += 1
            for wrong in differences(request["body"], right, choice):
                failed += 1
                print(f"request {number}, choice {choice['index']}: {wrong}")
            if "sum" in right:
                worst = max(worst, abs(loglikelihood(choice, right["context"])[0] - right["sum"]))
    assert compared > 0
    print(f"{compared} answers, {failed} wrong; the sums differ by {worst:.1e} at most")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
