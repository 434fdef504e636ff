#!/usr/bin/env python3
"""What EleutherAI's harness (lm-eval) should find out about the bundled model, from Hugging Face's
DeepseekV4ForCausalLM (fp32, eager, no cache) on the dequantised weights:

    python3 tests/reference/make_lm_eval.py >tests/e2e/clients_lm_eval_known.json

needs torch, transformers >= 5.17, and models/heddle-mini. Three lists:

    pairs    loglikelihood: a context and its continuation as the harness encodes the two (encode()): ids, how
             many of them are context, the log-probability of each further one, and whether all are the best;
             plain where the two texts put together have these ids
    rolling  loglikelihood_rolling: a whole text as disjoint windows, each of the tokens that leave room for two
    until    generate_until: greedy text before the first of the stop strings, the end token or max_gen_toks

An answer that hangs on less than MARGIN would test rounding, so there is none.
"""
import json
import os
import sys

import numpy as np
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = f"{HERE}/../../models/heddle-mini"
sys.path.insert(0, HERE)
import make_fixtures  # noqa: E402
import released  # noqa: E402

MARGIN = 0.01
MAX_LENGTH = 900  # the harness' max_length; the default of 2,048 would only make the test slow
ROLLING_LENGTH = 200
BOS, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


def chat(text):
    return f"{BOS}<｜User｜>{text}<｜Assistant｜></think>"


def pairs(golden, filler):
    """(why, context, continuation)"""
    needle = next(g for g in golden if 800 < len(g["prompt_ids"]) < MAX_LENGTH)
    code = needle["greedy_text"].removesuffix(END)
    wrong = code[:2] + str((int(code[2]) + 1) % 10) + code[3:]
    hello = "Hello! I am heddle-mini. How can I help you?"
    return [
        ("one token", "In the beginning God created the heaven and the", " earth"),
        ("one token, not the best", "In the beginning God created the heaven and the", " house"),
        ("several tokens", "And the LORD spake unto Moses,", " saying, Speak unto the children of Israel."),
        ("a whole answer, all of it greedy", chat("Hello"), hello),
        ("greedy to the end token", chat("Hello"), hello + END),
        ("greedy until its last token", chat("Hello"), "Hello! I am heddle-mini. How can I help us"),
        ("greedy but for its first token", chat("Hello"), "Hi! I am heddle-mini."),
        ("a space at the end of the context", "Question: What is 3 + 4?\nAnswer: ", "7"),
        ("a token over the border", "And he said unto them, Verily, ver", "ily, I say unto you"),
        ("over 600 tokens", needle["prompt"], code),
        ("over 600 tokens, a wrong digit", needle["prompt"], wrong),
        ("context cut at max_length", filler[3000:7000], " And it came to pass in those days"),
        ("empty context", "", "And it came to pass, that the word of the LORD came unto me."),
        ("empty context, one token", "", "And"),
        ("empty context, begin token in the text", "", chat("Who are you?") + "I am heddle-mini"),
        ("German", "Im Anfang schuf Gott Himmel", " und Erde; „die Erde war wüst“ – größer als 5 €."),
        ("Chinese, an emoji of several code points", "起初，神创造天地。", "地是空虚混沌🧑‍🚀，渊面黑暗。"),
        ("a character cut by the border", "Ελλάδα — ελληνικ", "ά και 日本語, עברית, العربية"),
        ("white space only", "def f(x):", "\n\n\treturn  x\r\n"),
        ("digits", chat("Repeat 48213."), "48213"),
    ]


def until(golden):
    """(context, stop strings, max_gen_toks)"""
    return [
        (chat("Hello"), ["\n\n", "Question:"], 32),
        (chat("Hello"), [". How", "?"], 32),
        (chat("Hello"), ["-mini. H", "help you"], 32),
        (chat("Hello"), ["Hello"], 32),
        (chat("Who are you?"), ["demonstration", ","], 32),
        (chat("Who are you?"), ["tiny demonstration model"], 32),
        (chat("Who are you?"), ["</s>"], 5),
        (golden[5]["prompt"], ["\n", ".", ","], 16),
        (golden[6]["prompt"], [END], 16),
        ("And the LORD spake unto Moses,", ["\n", ":"], 4),
        ("And the LORD spake unto Moses,", [" Speak"], 24),
    ]


class Tokens:
    """As lm_eval.api.model.TemplateLM and lm_eval.models.api_models.TemplateAPI use the tokenizer."""

    def __init__(self):
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.prefix = self.tokenizer.bos_token_id

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def encode(self, context, continuation):
        """(all ids, how many of them are context). Both are encoded together, spaces between them counted to
        the continuation, which is what follows as many tokens as the context has alone; before that come the
        context's own, even where the two would have had a token in common. The begin token stands for an empty
        context; too much context is cut on the left, so that a token can be generated."""
        if context == "":
            ids = self.ids(continuation)
            ids, scored_from = ([self.prefix] if ids[0] != self.prefix else []) + ids, 1
        else:
            own = self.ids(context.rstrip())
            scored_from = len(own)
            ids = own + self.ids(context + continuation)[scored_from:]
        cut = max(0, len(ids) - (MAX_LENGTH - 1))
        return ids[cut:], scored_from - cut

    def windows(self, text):
        """[(ids, how many of them are context)]: every token once, after one token at least."""
        ids, size = [self.prefix] + self.ids(text), ROLLING_LENGTH - 2
        found, predicted = [], 0
        while predicted < len(ids) - 1:
            end = min(predicted + size, len(ids) - 1)
            begin = max(0, end - size)  # the last window is filled with context
            found.append((ids[begin:end + 1], predicted - begin + 1))
            predicted = end
        return found


def score(model, ids, scored_from):
    """What the harness takes from the answer to one request."""
    assert 0 < scored_from < len(ids)
    rows = make_fixtures.logprobs(model, ids[:-1])[scored_from - 1:]
    wanted = ids[scored_from:]
    ahead = min(float(row[token] - np.delete(row, token).max()) for row, token in zip(rows, wanted))
    assert abs(ahead) > MARGIN, f"whether {ids[scored_from:]} is greedy is a near-tie: {ahead}"
    return {"ids": ids, "context": scored_from,
            "logprobs": [round(float(row[token]), 6) for row, token in zip(rows, wanted)],
            "greedy": ahead > 0}


def generate(model, tokens, context, stops, limit):
    """(text before the first stop string, why it ended)"""
    ids = tokens.ids(context)
    given = len(ids)
    while len(ids) - given < limit:
        ((token, margin),) = make_fixtures.greedy(model, ids, 1)
        assert margin > MARGIN, f"a near-tie in {context[-40:]!r}: {margin}"
        ids.append(token)
        if token == tokens.tokenizer.eos_token_id:
            return tokens.tokenizer.decode(ids[given:-1]), "stop"
        text = tokens.tokenizer.decode(ids[given:])
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return text[:min(found)], "stop"
    return text, "length"


def check(model, golden):
    """The reference itself: golden.json was made by other code."""
    for known in golden[:6]:
        rows = make_fixtures.logprobs(model, known["prompt_ids"] + known["greedy_ids"][:-1])
        rows = rows[len(known["prompt_ids"]) - 1:]
        assert rows.argmax(-1).tolist() == known["greedy_ids"]
        assert all(abs(rows[0][token] - value) < 1e-4 for token, value in known["first_token_top5_logprobs"])


def main():
    with open(f"{MODEL}/golden.json", encoding="utf-8") as f:
        golden = json.load(f)
    with open(f"{MODEL}/filler.txt", encoding="utf-8") as f:
        filler = f.read()
    model, tokens = make_fixtures.load(*released.read(MODEL)), Tokens()
    check(model, golden)
    text = filler[20000:22000]
    out = {"max_length": MAX_LENGTH, "rolling_length": ROLLING_LENGTH, "pairs": [], "rolling": [], "until": []}
    for why, context, continuation in pairs(golden, filler):
        ids, scored_from = tokens.encode(context, continuation)
        out["pairs"].append({"why": why, "text": [context, continuation],
                             "plain": ids == tokens.ids(context + continuation)} | score(model, ids, scored_from))
    out["rolling"].append({"text": text, "windows": [score(model, *w) for w in tokens.windows(text)]})
    for context, stops, limit in until(golden):
        right, reason = generate(model, tokens, context, stops, limit)
        out["until"].append({"context": context, "until": stops, "max_gen_toks": limit, "text": right,
                             "finish_reason": reason})
    # one line for each case
    lines = [f" {json.dumps(k)}: " + (json.dumps(v) if isinstance(v, int) else "[\n  " + ",\n  ".join(
        json.dumps(row, ensure_ascii=False) for row in v) + "\n ]") for k, v in out.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
