#!/usr/bin/env python3
"""The openai package's async client against heddled, over the Unix socket and over TCP."""
import asyncio
import os
import unittest

import httpx2
from openai import AsyncOpenAI, BadRequestError, DefaultAsyncHttpxClient

from clients_known import HELLO, KNOWN, NEEDLES, call, wait_until_idle
from clients_openai import MODEL


class Cases:
    def make_client(self):
        raise NotImplementedError

    async def asyncSetUp(self):
        self.client = self.make_client()
        self.addAsyncCleanup(self.client.close)

    async def ask(self, known, **parameters):
        answer = await self.client.chat.completions.create(
            model=MODEL, messages=known.messages, temperature=0, **parameters)
        return answer.choices[0].message.content

    async def stream(self, known, **parameters):
        pieces = []
        async for chunk in await self.client.chat.completions.create(
                model=MODEL, messages=known.messages, temperature=0, stream=True, **parameters):
            pieces += [c.delta.content for c in chunk.choices if c.delta.content]
        return "".join(pieces)

    async def test_many_at_once_each_get_their_own(self):
        known = KNOWN[:6] * 3
        answers = await asyncio.gather(*(self.ask(k) for k in known), *(self.stream(k) for k in known))
        self.assertEqual(answers, [k.answer for k in known * 2])

    async def test_needle_is_found(self):
        answers = await asyncio.gather(self.ask(NEEDLES[0]), self.stream(NEEDLES[1]))
        self.assertEqual(answers, [NEEDLES[0].answer, NEEDLES[1].answer])

    async def test_a_refusal_is_an_exception_and_others_go_on(self):
        answer, refused = await asyncio.gather(
            self.stream(HELLO), self.ask(HELLO, top_logprobs=5), return_exceptions=True)
        self.assertEqual(answer, HELLO.answer)
        self.assertIsInstance(refused, BadRequestError)
        self.assertEqual(refused.param, "top_logprobs")

    async def test_cancelled_tasks_leave_nothing(self):
        """A stream that is left, and a task cancelled while it waits for a whole answer."""
        before = call("GET", "/status")[2]["scheduler"]["cancelled"]
        long = {"model": MODEL, "messages": HELLO.messages, "max_tokens": 60000,
                "extra_body": {"ignore_eos": True}}
        stream = await self.client.chat.completions.create(stream=True, **long)
        await anext(aiter(stream))
        task = asyncio.create_task(self.client.chat.completions.create(**long))
        while call("GET", "/status")[2]["scheduler"]["running"] < 2:
            await asyncio.sleep(0.1)  # between two looks
        task.cancel()
        await stream.close()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(wait_until_idle()["scheduler"]["cancelled"], before + 2)


class Unix(Cases, unittest.IsolatedAsyncioTestCase):
    def make_client(self):
        transport = httpx2.AsyncHTTPTransport(uds=os.environ["SOCKET"])
        return AsyncOpenAI(base_url="http://heddle/v1", api_key="none", max_retries=0,
                           http_client=DefaultAsyncHttpxClient(transport=transport))


class Tcp(Cases, unittest.IsolatedAsyncioTestCase):
    def make_client(self):
        return AsyncOpenAI(base_url=f"http://{os.environ['TCP']}/v1", api_key="none", max_retries=0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
