#!/usr/bin/env python3
"""The openai package against heddled: the same cases over the Unix socket and over TCP, from
$SOCKET and $TCP. Answers are compared with the bundled model's goldens. The daemon keeps attention's
rows and index keys in f32, so that log-probabilities have 2e-3."""
import os
import unittest

import httpx2
import openai
from openai import DefaultHttpxClient, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from clients_known import (HELLO, KNOWN, NEEDLES, REPEAT, SUM, TOLERANCE, WHO, call, wait_until_idle)

MODEL = "heddle-mini"
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather at a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}


def unix_client():
    transport = httpx2.HTTPTransport(uds=os.environ["SOCKET"])
    return OpenAI(base_url="http://heddle/v1", api_key="none", max_retries=0,
                  http_client=DefaultHttpxClient(transport=transport))


def strictly(kind, answer):
    """The package takes any JSON; this takes only what its own types allow."""
    kind.model_validate(answer.to_dict(), strict=False)
    return answer


def top_by_text(known):
    """The reference's five best first tokens: text to log-probability."""
    top = {call("POST", "/detokenize", {"tokens": [i]})[2]["prompt"]: value for i, value in known.top.items()}
    assert len(top) == 5, top
    return top


class Cases:
    needles = NEEDLES[:1]

    def ask(self, known, **parameters):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=known.messages, temperature=0, **parameters)
        return strictly(ChatCompletion, answer)

    def stream(self, known, **parameters):
        chunks = list(self.client.chat.completions.create(
            model=MODEL, messages=known.messages, temperature=0, stream=True, **parameters))
        for chunk in chunks:
            strictly(ChatCompletionChunk, chunk)
        return chunks

    # ---- answers ----

    def test_models_are_listed_and_found(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).owned_by, "heddle")

    def test_chat_says_what_is_known_and_counts_it(self):
        for known in KNOWN[:6]:
            answer = self.ask(known)
            self.assertEqual(answer.choices[0].message.content, known.answer)
            self.assertEqual(answer.choices[0].message.role, "assistant")
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.assertEqual(answer.usage.prompt_tokens, len(known.prompt_ids))
            self.assertEqual(answer.usage.completion_tokens, len(known.answer_ids))

    def test_stream_is_the_answer_in_pieces(self):
        for known in (HELLO, WHO, SUM):
            chunks = self.stream(known, stream_options={"include_usage": True})
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            self.assertEqual(text, known.answer)
            self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
            self.assertEqual(chunks[-1].usage.completion_tokens, len(known.answer_ids))
            self.assertEqual(len({c.id for c in chunks}), 1)

    def test_stream_helper_gathers_the_same(self):
        with self.client.chat.completions.stream(
                model=MODEL, messages=HELLO.messages, temperature=0) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
        self.assertGreater(len(deltas), 5)
        self.assertEqual("".join(deltas), HELLO.answer)
        self.assertEqual(stream.get_final_completion().choices[0].message.content, HELLO.answer)

    def test_needle_is_found_whole_and_streamed(self):
        for known in self.needles:
            answer = self.ask(known, max_tokens=20)
            self.assertEqual(answer.choices[0].message.content, known.answer)
            self.assertEqual(answer.usage.prompt_tokens, len(known.prompt_ids))
        chunks = self.stream(NEEDLES[-1], max_tokens=20)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), NEEDLES[-1].answer)

    def test_completions_go_on_from_text_and_from_ids(self):
        answer = strictly(Completion, self.client.completions.create(
            model=MODEL, prompt=[HELLO.prompt, SUM.prompt], temperature=0, max_tokens=30))
        self.assertEqual([c.text for c in answer.choices], [HELLO.answer, SUM.answer])
        answer = self.client.completions.create(
            model=MODEL, prompt=[k.prompt_ids for k in (WHO, REPEAT)], temperature=0, max_tokens=30,
            extra_body={"return_token_ids": True})
        for choice, known in zip(answer.choices, (WHO, REPEAT)):
            self.assertEqual(choice.text, known.answer)
            self.assertEqual(choice.token_ids, known.answer_ids)
        pieces = self.client.completions.create(
            model=MODEL, prompt=HELLO.prompt, temperature=0, max_tokens=30, stream=True)
        self.assertEqual("".join(p.choices[0].text for p in pieces), HELLO.answer)

    # ---- log-probabilities ----

    def are_the_reference(self, said, right):
        self.assertEqual(said.keys(), right.keys())
        for token, reference in right.items():
            self.assertAlmostEqual(said[token], reference, delta=TOLERANCE, msg=repr(token))

    def test_chat_logprobs_are_those_of_the_reference(self):
        for known in KNOWN[:6]:
            answer = self.ask(known, logprobs=True, top_logprobs=5, max_tokens=20)
            content = answer.choices[0].logprobs.content
            self.assertEqual(len(content), len(known.answer_ids))
            said = {(t.token, bytes(t.bytes)): t.logprob for t in content[0].top_logprobs}
            right = {(text, text.encode()): v for text, v in top_by_text(known).items()}
            self.are_the_reference(said, right)
            text = b"".join(bytes(t.bytes) for t in content[:-1])
            self.assertEqual(text.decode(), known.answer)
            for token in content:  # greedy: what was taken is the best
                self.assertEqual(token.logprob, token.top_logprobs[0].logprob)

    def test_streamed_logprobs_are_the_same(self):
        whole = self.ask(HELLO, logprobs=True, top_logprobs=2).choices[0].logprobs.content
        streamed = [t for c in self.stream(HELLO, logprobs=True, top_logprobs=2)
                    if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual([t.to_dict() for t in streamed], [t.to_dict() for t in whole])

    def test_completions_logprobs_with_echo(self):
        answer = self.client.completions.create(
            model=MODEL, prompt=HELLO.prompt_ids, temperature=0, max_tokens=1, echo=True, logprobs=5)
        logprobs = answer.choices[0].logprobs
        self.assertEqual("".join(logprobs.tokens), answer.choices[0].text)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.are_the_reference(logprobs.top_logprobs[-1], top_by_text(HELLO))

    # ---- parameters ----

    def test_n_answers_are_apart_and_a_seed_repeats_them(self):
        answer = self.ask(HELLO, n=3)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        self.assertEqual({c.message.content for c in answer.choices}, {HELLO.answer})
        drawn = [[c.message.content for c in self.client.chat.completions.create(
            model=MODEL, messages=HELLO.messages, temperature=1.8, seed=seed, n=4,
            max_tokens=16, extra_body={"ignore_eos": True}).choices] for seed in (7, 7, 8)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertGreater(len(set(drawn[0])), 1)

    def test_n_streams_are_told_apart(self):
        texts = ["", ""]
        for chunk in self.stream(HELLO, n=2):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [HELLO.answer] * 2)

    def test_stop_ends_just_before(self):
        for stop in ("mini. How", ["xyz", "mini. How"]):
            choice = self.ask(HELLO, stop=stop).choices[0]
            self.assertEqual(choice.message.content, "Hello! I am heddle-")
            self.assertEqual(choice.finish_reason, "stop")
            self.assertEqual(choice.stop_reason, "mini. How")
            chunks = self.stream(HELLO, stop=stop)
            self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks),
                             "Hello! I am heddle-")

    def test_limits_end_with_length(self):
        for name in ("max_tokens", "max_completion_tokens"):
            choice = self.ask(HELLO, **{name: 2}).choices[0]
            self.assertEqual((choice.message.content, choice.finish_reason), ("Hello!", "length"))

    def test_a_forced_token_is_written(self):
        """logit_bias: the id of "7" made impossible, the answer to 3 + 4 is another."""
        self.assertEqual(SUM.answer, "7")
        other = self.ask(SUM, logit_bias={str(SUM.answer_ids[0]): -100}).choices[0].message.content
        self.assertNotIn("7", other[:1])

    def test_thinking_comes_apart_from_the_answer(self):
        message = self.ask(HELLO, reasoning_effort="high", max_tokens=24).choices[0].message
        self.assertIsInstance(message.reasoning_content, str)
        self.assertNotIn("think>", message.reasoning_content + (message.content or ""))

    # ---- tools: accepted, rendered, answered; what a call looks like is clients_openai_tools.py's ----

    def test_tools_are_taken_into_the_prompt(self):
        plain = self.ask(SUM).usage.prompt_tokens
        answer = self.ask(SUM, tools=[WEATHER], max_tokens=8)
        self.assertGreater(answer.usage.prompt_tokens, plain + 100)
        self.assertIsNone(answer.choices[0].message.tool_calls)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        answer = self.ask(SUM, tools=[WEATHER], tool_choice="none")
        self.assertEqual(answer.usage.prompt_tokens, plain)
        self.assertEqual(answer.choices[0].message.content, SUM.answer)

    # ---- what goes wrong ----

    def test_a_wrong_parameter_is_a_bad_request_that_names_it(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model=MODEL, messages=HELLO.messages, temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(caught.exception.type, "invalid_request_error")
        self.assertEqual(caught.exception.code, "invalid_value")
        self.assertIn("0 to 100", caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model=MODEL, messages=[])
        self.assertEqual(caught.exception.param, "messages")

    def test_a_prompt_over_the_context_says_both_lengths(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model=MODEL, prompt=[3] * 70000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertIn("70000", caught.exception.message)
        self.assertIn("65536", caught.exception.message)

    def test_a_stream_that_is_refused_is_an_exception(self):
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(
                model=MODEL, messages=HELLO.messages, stream=True, top_p=7)

    def test_what_is_not_there_is_not_found(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=MODEL, input="a")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt-2")

    def test_request_ids_go_through(self):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=SUM.messages, temperature=0, extra_headers={"x-request-id": "mine-1"})
        self.assertEqual(answer._request_id, "mine-1")
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=SUM.messages, temperature=0)
        self.assertTrue(raw.headers["x-request-id"])
        self.assertEqual(raw.parse().choices[0].message.content, SUM.answer)

    def test_a_client_that_gives_up_leaves_nothing(self):
        before = call("GET", "/status")[2]["scheduler"]["cancelled"]
        long = {"model": MODEL, "messages": HELLO.messages, "max_tokens": 60000,
                "extra_body": {"ignore_eos": True}}
        with self.client.chat.completions.create(stream=True, **long) as stream:
            next(iter(stream))
        wait_until_idle()
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.5).chat.completions.create(**long)
        self.assertEqual(wait_until_idle()["scheduler"]["cancelled"], before + 2)


class Unix(Cases, unittest.TestCase):
    needles = NEEDLES

    @classmethod
    def setUpClass(cls):
        cls.client = unix_client()
        cls.addClassCleanup(cls.client.close)


class Tcp(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = OpenAI(base_url=f"http://{os.environ['TCP']}/v1", api_key="none", max_retries=0)
        cls.addClassCleanup(cls.client.close)


if __name__ == "__main__":
    unittest.main(verbosity=2)
