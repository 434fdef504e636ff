#!/usr/bin/env python3
"""The openai package and a full queue: RateLimitError, with the time after which its own retry succeeds. The
daemon runs one sequence and lets one wait (clients_limits.bats)."""
import threading
import unittest

import openai

from clients_known import HELLO, call, wait_until, wait_until_idle
from clients_openai import MODEL, unix_client

ENDLESS = {"model": MODEL, "prompt": "Hello", "max_tokens": 60000, "stream": True,
           "extra_body": {"ignore_eos": True}}


class Busy(unittest.TestCase):
    def setUp(self):
        self.client = unix_client()
        self.addCleanup(self.client.close)

    def refusals(self):
        return next(int(line.split()[1]) for line in call("GET", "/metrics")[2].splitlines()
                    if line.startswith('heddle_requests_total{outcome="refused"}'))

    def test_a_full_queue_says_so_and_the_package_comes_back(self):
        running = self.client.completions.create(**ENDLESS)
        next(iter(running))
        waiting = threading.Thread(target=self.wait, daemon=True)
        waiting.start()
        wait_until(lambda s: s["queue"]["waiting"] == 1)
        with self.assertRaises(openai.RateLimitError) as caught:
            self.ask(self.client)
        self.assertEqual(caught.exception.status_code, 429)
        self.assertEqual(caught.exception.code, "queue_full")
        self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 1)
        before, answers = self.refusals(), []
        patient = threading.Thread(
            target=lambda: answers.append(self.ask(self.client.with_options(max_retries=100))), daemon=True)
        patient.start()
        wait_until(lambda s: self.refusals() > before)
        running.close()
        patient.join()
        waiting.join()
        self.assertEqual(answers, [HELLO.answer])
        self.assertEqual(self.waited, 1)
        wait_until_idle()

    def test_what_fills_the_queue_by_itself_is_not_told_to_come_back(self):
        wait_until_idle()
        for parameters, param in (({"prompt": "Hello", "n": 3}, "n"), ({"prompt": ["a", "b", "c"]}, "prompt")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.completions.create(model=MODEL, max_tokens=1, **parameters)
            self.assertEqual(caught.exception.param, param)
            for said in ("ask for 3 answers", "1 can run", "1 wait", "schedule.queue"):
                self.assertIn(said, caught.exception.message)
        answer = self.client.completions.create(model=MODEL, prompt="Hello", n=2, max_tokens=1)
        self.assertEqual(len(answer.choices), 2)

    def wait(self):
        """Its turn comes when the first one goes."""
        answer = self.client.completions.create(model=MODEL, prompt="Hello", max_tokens=1)
        self.waited = answer.usage.completion_tokens

    def ask(self, client):
        return client.chat.completions.create(model=MODEL, messages=HELLO.messages,
                                              temperature=0).choices[0].message.content


if __name__ == "__main__":
    unittest.main(verbosity=2)
