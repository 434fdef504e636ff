#!/usr/bin/env python3
"""Each parameter of a request by its effect, through the openai package, on the bundled model: what it has
to change, and that without it the answer is another."""
import unittest

import openai

from clients_known import BOS, END, HELLO, KNOWN, REPEAT, SUM, WHO, call
from clients_openai import MODEL, unix_client

THINK, END_THINK = 5, 6  # the last token of a prompt
MOSES = "And the LORD spake unto Moses,"


class Parameters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = unix_client()
        cls.addClassCleanup(cls.client.close)

    def chat(self, known=HELLO, temperature=0, **parameters):
        """The one choice; what OpenAI's API does not have is found in clients_openai's own way."""
        named = {"logprobs", "top_logprobs", "stop", "n", "seed", "max_tokens", "logit_bias", "top_p",
                 "reasoning_effort", "response_format", "frequency_penalty", "presence_penalty"}
        extra = {k: v for k, v in parameters.items() if k not in named}
        self.answer = self.client.chat.completions.create(
            model=MODEL, messages=known.messages, temperature=temperature, extra_body=extra or None,
            **{k: v for k, v in parameters.items() if k in named})
        return self.answer.choices[0]

    def said(self, *args, **parameters):
        return self.chat(*args, **parameters).message.content

    def text(self, prompt=MOSES, temperature=0, stream=False, extra=None, **parameters):
        return self.client.completions.create(model=MODEL, prompt=prompt, temperature=temperature, stream=stream,
                                              extra_body=extra, **parameters)

    def refused(self, param, **parameters):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(**parameters)
        self.assertEqual(caught.exception.param, param)
        return caught.exception.message

    # ---- what is drawn ----

    def test_truncations_leave_the_best_token_only(self):
        hot = {"temperature": 5, "seed": 11, "max_tokens": 30}
        self.assertNotEqual(self.said(**hot), HELLO.answer)
        for one in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.000001}):
            self.assertEqual(self.said(**hot, **one), HELLO.answer, one)

    def test_off_is_off(self):
        hot = {"temperature": 1.5, "seed": 11, "max_tokens": 20, "ignore_eos": True}
        drawn = self.said(**hot)
        for off in ({"top_k": 0}, {"top_k": -1}, {"top_k": 4096}, {"min_p": 0}, {"top_p": 1},
                    {"repetition_penalty": 1}, {"frequency_penalty": 0, "presence_penalty": 0}, {"logit_bias": {}}):
            self.assertEqual(self.said(**hot, **off), drawn, off)

    def test_penalties_are_what_openai_says(self):
        """Each token taken is the best after frequency * count + presence, by the logits that are reported."""
        for frequency, presence in ((0, 0), (2, 0), (0, 2), (1.5, 0.5), (-1, 0)):
            answer = self.text(max_tokens=40, logprobs=20, extra={"ignore_eos": True},
                               frequency_penalty=frequency, presence_penalty=presence)
            counts, decided, moved = {}, 0, 0
            logprobs = answer.choices[0].logprobs
            for token, tops in zip(logprobs.tokens, logprobs.top_logprobs):
                after = {t: v - frequency * counts.get(t, 0) - presence * (t in counts) for t, v in tops.items()}
                best, second = sorted(after.values(), reverse=True)[:2]
                if best - second > 0.01 and best > min(tops.values()) + 0.01:
                    self.assertEqual(after[token], best, f"{frequency} {presence} {counts} {token!r} {tops}")
                    decided += 1
                    moved += tops[token] != max(tops.values())
                counts[token] = counts.get(token, 0) + 1
            self.assertGreater(decided, 20)
            self.assertEqual(moved > 0, frequency != 0 or presence != 0)

    def test_a_repetition_penalty_counts_the_prompt_too(self):
        """At 100 nothing comes twice that has an alternative."""
        ask = {"max_tokens": 24, "extra": {"ignore_eos": True, "return_token_ids": True}}
        ids = self.text(**ask).choices[0].token_ids
        self.assertLess(len(set(ids)), len(ids))
        ask["extra"]["repetition_penalty"] = 100
        choice = self.text(**ask).choices[0]
        seen = choice.prompt_token_ids + choice.token_ids
        self.assertEqual(len(set(choice.token_ids) - set(choice.prompt_token_ids)), 24)
        self.assertEqual(len(seen), len(choice.prompt_token_ids) + 24)

    def test_a_bias_forces_and_forbids(self):
        seven = SUM.answer_ids[0]
        self.assertEqual(self.said(logit_bias={str(seven): 100}, max_tokens=5, ignore_eos=True), "77777")
        self.assertEqual(self.said(SUM), "7")
        self.assertNotIn("7", self.said(SUM, logit_bias={str(seven): -100}, max_tokens=1))

    # ---- where it ends ----

    def test_min_tokens_keeps_the_end_away(self):
        choice = self.chat(min_tokens=20, max_tokens=30)
        self.assertGreaterEqual(self.answer.usage.completion_tokens, 20)
        self.assertTrue(choice.message.content.startswith(HELLO.answer))
        whole = len(HELLO.answer_ids)  # the end token is the last of them
        self.chat(min_tokens=whole - 1, max_tokens=30)
        self.assertEqual(self.answer.usage.completion_tokens, whole)
        self.chat(min_tokens=whole, max_tokens=30)
        self.assertGreater(self.answer.usage.completion_tokens, whole)

    def test_ignore_eos_goes_on_to_the_limit(self):
        choice = self.chat(ignore_eos=True, max_tokens=20)
        self.assertEqual((self.answer.usage.completion_tokens, choice.finish_reason), (20, "length"))
        self.assertTrue(choice.message.content.startswith(HELLO.answer))
        self.assertNotIn(END, choice.message.content)
        choice = self.chat(ignore_eos=True, max_tokens=20, skip_special_tokens=False)
        self.assertTrue(choice.message.content.startswith(HELLO.answer + END))

    def test_a_stop_token_ends_without_text(self):
        full_stop = HELLO.answer_ids[6]
        choice = self.chat(stop_token_ids=[full_stop])
        self.assertEqual((choice.message.content, choice.finish_reason, choice.stop_reason),
                         ("Hello! I am heddle-mini", "stop", full_stop))

    def test_stop_strings_in_all_their_forms(self):
        for stop, left in (("!", "Hello"), (["?", "mini"], "Hello! I am heddle-"), ("ddle-mi", "Hello! I am he"),
                           ([f"no{i}" for i in range(15)] + [". How c"], "Hello! I am heddle-mini"), ("H", ""),
                           ([], HELLO.answer), ("you?!", HELLO.answer), ("\n", HELLO.answer)):
            choice = self.chat(stop=stop)
            self.assertEqual((choice.message.content, choice.finish_reason), (left, "stop"))
            text = self.text(HELLO.prompt, stop=stop, max_tokens=30).choices[0]
            self.assertEqual((text.text, text.finish_reason), (left, "stop"))
            pieces = self.text(HELLO.prompt, stop=stop, max_tokens=30, stream=True)
            self.assertEqual("".join(p.choices[0].text for p in pieces), left)
        echoed = self.text(HELLO.prompt, stop="Hello", max_tokens=30, echo=True).choices[0].text
        self.assertEqual(echoed, HELLO.prompt)  # not looked for in the echo; the answer begins with it
        self.assertIn("16", self.refused("stop", stop=["a"] * 17))
        self.refused("stop", stop=[""])

    # ---- thinking, under the names that clients use ----

    def test_thinking_under_each_name(self):
        on = [{"reasoning_effort": effort} for effort in ("minimal", "low", "medium", "high", "xhigh", "max")]
        on += [{"thinking": {"type": "enabled"}}, {"chat_template_kwargs": {"thinking": True}},
               {"chat_template_kwargs": {"enable_thinking": True}},
               {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}]
        off = [{}, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}},
               {"chat_template_kwargs": {"thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}},
               {"reasoning_effort": "high", "thinking": {"type": "disabled"}}]
        for switch in on:
            message = self.chat(max_tokens=6, ignore_eos=True, return_token_ids=True, **switch).message
            self.assertEqual(self.answer.prompt_token_ids[-1], THINK, switch)
            self.assertEqual(len(self.answer.prompt_token_ids) > 20, switch.get("reasoning_effort") == "max")
            self.assertTrue(message.reasoning_content, switch)
            self.assertFalse(message.content)
            self.assertEqual(self.answer.usage.completion_tokens_details.reasoning_tokens, 6)
        for switch in off:
            message = self.chat(return_token_ids=True, **switch).message
            self.assertEqual(self.answer.prompt_token_ids[-1], END_THINK, switch)
            self.assertEqual(message.content, HELLO.answer)
            self.assertIsNone(getattr(message, "reasoning_content", None))
        self.refused("chat_template_kwargs.thinking", thinking={"type": "enabled"},
                     chat_template_kwargs={"thinking": False})

    # ---- what comes with the answer ----

    def test_ids_of_prompt_and_answer(self):
        choice = self.chat(return_token_ids=True)
        self.assertEqual(self.answer.prompt_token_ids, HELLO.prompt_ids)
        self.assertEqual(choice.token_ids, HELLO.answer_ids)
        choice = self.text([REPEAT.prompt, WHO.prompt], max_tokens=30, extra={"return_token_ids": True}).choices[1]
        self.assertEqual((choice.prompt_token_ids, choice.token_ids), (WHO.prompt_ids, WHO.answer_ids))

    def test_usage_ends_a_stream_that_asks_for_it(self):
        for wanted in (True, False):
            chunks = list(self.text(HELLO.prompt, max_tokens=30, stream=True,
                                    stream_options={"include_usage": wanted}))
            self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), HELLO.answer)
            usage = [c.usage for c in chunks if c.usage]
            self.assertEqual(len(usage), wanted)
            if wanted:
                self.assertEqual(chunks[-1].choices, [])
                self.assertEqual((usage[0].prompt_tokens, usage[0].completion_tokens),
                                 (len(HELLO.prompt_ids), len(HELLO.answer_ids)))

    def test_a_stream_adds_up_to_the_whole_answer(self):
        """Text, tokens, their log-probabilities, ids and the end of each choice, whatever is asked for."""
        for prompt, asked in (
                (["And it came", HELLO.prompt], {"n": 2, "seed": 5, "max_tokens": 12, "logprobs": 3}),
                (HELLO.prompt, {"echo": True, "logprobs": 1, "max_tokens": 20, "stop": ["can I"]}),
                ([HELLO.prompt_ids, SUM.prompt_ids], {"echo": True, "logprobs": 0, "max_tokens": 4, "n": 3}),
                (MOSES, {"max_tokens": 30, "seed": 9, "stop": [" the"]})):
            asked = asked | {"temperature": 0.9 if "seed" in asked else 0, "extra": {"return_token_ids": True}}
            whole = self.text(prompt, **asked).choices
            added = {c.index: [] for c in whole}
            for chunk in self.text(prompt, stream=True, **asked):
                for piece in chunk.choices:
                    added[piece.index].append(piece)
            for choice in whole:
                pieces = added[choice.index]
                self.assertEqual("".join(p.text for p in pieces), choice.text)
                self.assertEqual([i for p in pieces for i in getattr(p, "token_ids", None) or []], choice.token_ids)
                self.assertEqual([p.finish_reason for p in pieces if p.finish_reason], [choice.finish_reason])
                self.assertEqual(getattr(pieces[-1], "stop_reason", None), choice.stop_reason)
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                    self.assertEqual([v for p in pieces if p.logprobs for v in getattr(p.logprobs, name)],
                                     getattr(choice.logprobs, name) if choice.logprobs else [], name)

    def test_response_formats(self):
        self.assertEqual(self.said(response_format={"type": "text"}), HELLO.answer)
        self.refused("response_format", response_format={"type": "json_object"})

    def test_the_model_is_echoed_and_unknown_fields_are_named(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model="gpt-4o", messages=SUM.messages, temperature=0, user="u", metadata={"a": "b"},
            extra_body={"max_token": 3})
        self.assertEqual((raw.parse().model, raw.parse().choices[0].message.content), ("gpt-4o", SUM.answer))
        warning = raw.headers["x-heddle-warning"]
        self.assertIn("max_token", warning)
        for accepted in ("user", "metadata"):
            self.assertNotIn(f"{accepted} ", warning)

    # ---- special tokens ----

    def test_special_text_in_a_prompt_is_matched_unless_told_not_to(self):
        ask = {"max_tokens": 1, "extra": {"return_token_ids": True}}
        self.assertEqual(self.text(BOS + "a", **ask).choices[0].prompt_token_ids[0], 0)
        ask["extra"]["parse_special"] = False
        ids = self.text(BOS + "a", **ask).choices[0].prompt_token_ids
        self.assertGreater(len(ids), 3)
        self.assertGreater(min(ids), 6)
        status, _, back = call("POST", "/detokenize", {"tokens": ids})
        self.assertEqual((status, back["prompt"]), (200, BOS + "a"))

    def test_every_golden_answer_comes_with_everything_switched_on(self):
        """All parameters that change nothing at temperature 0, at once."""
        for known in KNOWN[:5]:
            self.assertEqual(self.said(
                known, top_p=0.5, top_k=3, min_p=0.1, seed=3, n=1, stop=["\x00never"], min_tokens=1, logprobs=True,
                top_logprobs=20, max_tokens=40, frequency_penalty=0, presence_penalty=0, repetition_penalty=1,
                logit_bias={"4000": -1}, stop_token_ids=[4001], ignore_eos=False, return_token_ids=True,
                reasoning_effort="none", response_format={"type": "text"}), known.answer)


if __name__ == "__main__":
    unittest.main(verbosity=2)
