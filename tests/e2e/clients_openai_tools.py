#!/usr/bin/env python3
"""The openai package and tool calls. The bundled model was never taught to call tools, so the workers are
fake ones that answer by the file $FAKE_SCRIPT (tests/proc/fake_worker.c); all the rest is heddled's own:
the prompt, the parser of the model's markup, the answers."""
import json
import os
import unittest

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from clients_known import SOURCE, call
from clients_openai import MODEL, WEATHER, strictly, unix_client

NOTE = {"type": "function", "function": {"name": "take_note", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["text", "stars", "tags"],
    "properties": {"text": {"type": "string"}, "stars": {"type": "integer"},
                   "tags": {"type": "array", "items": {"type": "string"}}}}}}
ASK = [{"role": "user", "content": "Is it warm in Oslo?"}]


def parameter(name, value):
    text = value if isinstance(value, str) else json.dumps(value)
    kind = "true" if isinstance(value, str) else "false"
    return f'<｜DSML｜parameter name="{name}" string="{kind}">{text}</｜DSML｜parameter>\n'


def invoke(name, **parameters):
    body = "".join(parameter(n, v) for n, v in parameters.items())
    return f'<｜DSML｜invoke name="{name}">\n{body}</｜DSML｜invoke>\n'


def calls(*invokes):
    return "<｜DSML｜tool_calls>\n" + "".join(invokes) + "</｜DSML｜tool_calls>"


def script(*answers):
    """The n-th sequence from now on says the n-th text, later ones the last."""
    with open(os.environ["FAKE_SCRIPT"] + ".new", "w", encoding="ascii") as f:
        for text in answers:
            status, _, said = call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})
            assert status == 200, said
            print(*said["tokens"], file=f)
    os.rename(f.name, os.environ["FAKE_SCRIPT"])


def exact_prompt(**body):
    tokens = call("POST", "/tokenize", body)[2]["tokens"]
    return call("POST", "/detokenize", {"tokens": tokens})[2]["prompt"]


OSLO = invoke("get_weather", place="Oslo, \"Sentrum\" – 2 < 3")
NOTED = invoke("take_note", text="line 1\nline 2\t\\ ｜ é 🚀", stars=5, tags=["a", "b c"])
ARGUMENTS = [{"place": "Oslo, \"Sentrum\" – 2 < 3"},
             {"text": "line 1\nline 2\t\\ ｜ é 🚀", "stars": 5, "tags": ["a", "b c"]}]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = unix_client()
        cls.addClassCleanup(cls.client.close)

    def ask(self, messages=ASK, **parameters):
        return strictly(ChatCompletion, self.client.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER, NOTE], **parameters))

    def test_calls_come_as_calls(self):
        script("Let me see.\n\n" + calls(OSLO, NOTED))
        choice = self.ask().choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertEqual(choice.message.content, "Let me see.")
        self.assertEqual([c.type for c in choice.message.tool_calls], ["function"] * 2)
        self.assertEqual([c.function.name for c in choice.message.tool_calls], ["get_weather", "take_note"])
        self.assertEqual([json.loads(c.function.arguments) for c in choice.message.tool_calls], ARGUMENTS)
        self.assertEqual(len({c.id for c in choice.message.tool_calls}), 2)

    def test_streamed_calls_add_up_to_the_same(self):
        script("Let me see.\n\n" + calls(OSLO, NOTED))
        content, found, reasons = "", {}, []
        for chunk in self.client.chat.completions.create(
                model=MODEL, messages=ASK, tools=[WEATHER, NOTE], stream=True):
            strictly(ChatCompletionChunk, chunk)
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasons.append(choice.finish_reason)
                for delta in choice.delta.tool_calls or []:
                    if delta.index not in found:
                        self.assertEqual(delta.type, "function")
                        found[delta.index] = {"id": delta.id, "name": delta.function.name, "arguments": ""}
                    found[delta.index]["arguments"] += delta.function.arguments or ""
        self.assertEqual(content, "Let me see.")
        self.assertEqual([f["name"] for f in found.values()], ["get_weather", "take_note"])
        self.assertEqual([json.loads(f["arguments"]) for f in found.values()], ARGUMENTS)
        self.assertEqual([r for r in reasons if r], ["tool_calls"])
        self.assertTrue(all(f["id"] for f in found.values()))

    def test_the_stream_helper_reads_them(self):
        script(calls(NOTED))
        with self.client.chat.completions.stream(model=MODEL, messages=ASK, tools=[NOTE]) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        self.assertEqual([e.parsed_arguments for e in done], [ARGUMENTS[1]])
        message = stream.get_final_completion().choices[0].message
        self.assertEqual(message.tool_calls[0].function.parsed_arguments, ARGUMENTS[1])

    def test_an_agent_goes_round(self):
        """Call, result, call, result, answer; every message is sent back as it came."""
        script(calls(OSLO), "Good.\n\n" + calls(NOTED), "It is 21 degrees.")
        messages, results = list(ASK), {"get_weather": "21 degrees", "take_note": "noted"}
        for turn in range(3):
            message = self.ask(messages).choices[0].message
            messages.append(message)
            for c in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": c.id, "content": results[c.function.name]})
        self.assertEqual(message.content, "It is 21 degrees.")
        self.assertIsNone(message.tool_calls)
        self.assertEqual([m["role"] if isinstance(m, dict) else m.role for m in messages],
                         ["user", "assistant", "tool", "assistant", "tool", "assistant"])
        # what the model saw: its own calls, word for word, and their results
        plain = [m if isinstance(m, dict) else m.to_dict() for m in messages[:-1]]
        prompt = exact_prompt(messages=plain, tools=[WEATHER, NOTE])
        self.assertIn(calls(OSLO), prompt)
        self.assertIn("Good.\n\n" + calls(NOTED), prompt)
        self.assertIn("21 degrees", prompt)

    def test_one_call_at_a_time_if_asked(self):
        script(calls(OSLO, NOTED))
        found = self.ask(parallel_tool_calls=False).choices[0].message.tool_calls
        self.assertEqual([c.function.name for c in found], ["get_weather"])

    def test_a_call_can_be_required(self):
        forced = exact_prompt(messages=ASK, tools=[WEATHER], tool_choice="required")
        self.assertTrue(forced.endswith('<｜DSML｜invoke name="') or forced.endswith("<｜DSML｜tool_calls>\n"))
        script(calls(OSLO).removeprefix(forced[forced.rindex("<｜DSML｜tool_calls>"):]))
        choice = self.ask(tool_choice="required").choices[0]
        self.assertEqual(json.loads(choice.message.tool_calls[0].function.arguments), ARGUMENTS[0])
        self.assertEqual(choice.finish_reason, "tool_calls")
        with self.assertRaises(openai.BadRequestError):
            self.ask(tool_choice={"type": "function", "function": {"name": "nothing"}})

    def test_a_named_function_is_called(self):
        """Even where the request would think first: then a header says that it does not."""
        named = {"type": "function", "function": {"name": "take_note"}}
        forced = exact_prompt(messages=ASK, tools=[WEATHER, NOTE], tool_choice=named)
        begun = forced[forced.rindex("<｜DSML｜tool_calls>"):]
        self.assertTrue(calls(NOTED).startswith(begun) and "take_note" in begun, begun)
        script(calls(NOTED).removeprefix(begun))
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=ASK, tools=[WEATHER, NOTE], tool_choice=named, reasoning_effort="high")
        self.assertIn("thinking is off", raw.headers["x-heddle-warning"])
        (found,) = raw.parse().choices[0].message.tool_calls
        self.assertEqual((found.function.name, json.loads(found.function.arguments)), ("take_note", ARGUMENTS[1]))

    def test_calls_in_one_piece_if_asked(self):
        """tool_stream off: a long call is one delta, and what it holds is the same."""
        long = {"text": "x" * 5000, "stars": 1, "tags": []}
        for whole in (False, True):
            script(calls(invoke("take_note", **long)))
            pieces = [delta.function.arguments for chunk in self.client.chat.completions.create(
                model=MODEL, messages=ASK, tools=[NOTE], stream=True, extra_body={"tool_stream": not whole})
                for choice in chunk.choices for delta in choice.delta.tool_calls or []]
            self.assertEqual(json.loads("".join(p or "" for p in pieces)), long)
            self.assertEqual(len(pieces) == 1, whole)

    def test_a_call_cut_by_the_limit_is_none(self):
        script("Hm.\n\n" + calls(OSLO))
        choice = self.ask(max_tokens=20).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        self.assertIsNone(choice.message.tool_calls)
        self.assertEqual(choice.message.content, "Hm.")

    def test_without_tools_it_is_text(self):
        script(calls(OSLO))
        choice = self.client.chat.completions.create(model=MODEL, messages=ASK).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        self.assertIsNone(choice.message.tool_calls)

    def test_a_result_nobody_asked_for_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(ASK + [{"role": "assistant", "content": "a"},
                            {"role": "tool", "tool_call_id": "call_1", "content": "b"}])
        self.assertIn("messages[2]", caught.exception.message)


ANSWER = "Grüß Gott, 你好 ﷽ 🧑‍🚀 – \u0301e\u0301, done."
CALLS = "\n\n" + calls(OSLO, NOTED)


class Text(unittest.TestCase):
    """What the model writes, split into tokens anywhere: whole characters, and stop strings where the rule has
    them (docs/api.md, Where an answer stops)."""

    setUpClass = classmethod(Tools.setUpClass.__func__)

    def ask(self, **parameters):
        return strictly(ChatCompletion, self.client.chat.completions.create(
            model=MODEL, messages=ASK, **parameters)).choices[0]

    def stream(self, **parameters):
        """(content, reasoning, arguments by call, finish reason) of the pieces; each is whole characters."""
        content, reasoning, arguments, reason = "", "", {}, None
        for chunk in self.client.chat.completions.create(model=MODEL, messages=ASK, stream=True, **parameters):
            for choice in chunk.choices:
                delta = choice.delta
                for piece in (delta.content or "", getattr(delta, "reasoning_content", None) or ""):
                    self.assertNotIn("\ufffd", piece)
                content += delta.content or ""
                reasoning += getattr(delta, "reasoning_content", None) or ""
                for call_delta in delta.tool_calls or []:
                    arguments.setdefault(call_delta.index, "")
                    arguments[call_delta.index] += call_delta.function.arguments or ""
                reason = choice.finish_reason or reason
        return content, reasoning, [json.loads(a) for a in arguments.values()], reason

    def both(self, said, parameters, right):
        """The same whole and streamed: right is (content, reasoning, arguments, finish reason)."""
        script(said)
        choice = self.ask(**parameters)
        message = choice.message
        self.assertEqual((message.content or "", getattr(message, "reasoning_content", None) or "",
                          [json.loads(c.function.arguments) for c in message.tool_calls or []],
                          choice.finish_reason), right, parameters)
        script(said)
        self.assertEqual(self.stream(**parameters), right, parameters)

    def test_characters_over_several_tokens_stay_whole(self):
        ids = call("POST", "/tokenize", {"prompt": ANSWER, "add_special_tokens": False})[2]["tokens"]
        self.assertGreater(len(ids), len(ANSWER))
        self.both(ANSWER, {}, (ANSWER, "", [], "stop"))

    def test_a_limit_in_a_character_leaves_one_replacement(self):
        ids = call("POST", "/tokenize", {"prompt": ANSWER, "add_special_tokens": False})[2]["tokens"]
        cut = 0
        for limit in range(1, len(ids) + 1):
            script(ANSWER)
            choice = self.ask(max_tokens=limit)
            self.assertEqual(choice.finish_reason, "length")
            whole = choice.message.content.removesuffix("\ufffd")
            self.assertTrue(ANSWER.startswith(whole), choice.message.content)
            cut += whole != choice.message.content
        self.assertGreater(cut, 10)

    def test_stop_strings_over_several_tokens(self):
        for stop, left in (("你好", "Grüß Gott, "), ("ott, 你", "Grüß G"), (["nowhere", "‍🚀"], ANSWER[:ANSWER.index("\u200d")]),
                           ("done.", ANSWER[:-5]), ("done.!", ANSWER)):
            self.both(ANSWER, {"stop": stop}, (left, "", [], "stop"))

    def test_stop_strings_are_not_looked_for_in_reasoning(self):
        thought = "First STOP, 你好.\n"
        think = {"reasoning_effort": "high", "stop": ["STOP", "</think>"]}
        self.both(thought + "</think>" + ANSWER, think, (ANSWER, thought, [], "stop"))
        self.both(thought + "</think>All STOP here", think, ("All ", thought, [], "stop"))
        self.both(thought, think | {"max_tokens": 5}, ("", self.prefix(thought, 5), [], "length"))

    def prefix(self, text, n):
        ids = call("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[2]["tokens"]
        return call("POST", "/detokenize", {"tokens": ids[:n]})[2]["prompt"]

    def test_stop_strings_are_not_looked_for_in_calls(self):
        tools = {"tools": [WEATHER, NOTE]}
        for stop in ("Sentrum", "line 1", "invoke", "<｜DSML｜", "tool_calls", "take_note", "5"):
            self.both("Let me see." + CALLS, tools | {"stop": stop}, ("Let me see.", "", ARGUMENTS, "tool_calls"))
        self.both("Let me see." + CALLS, tools | {"stop": "me"}, ("Let ", "", [], "stop"))

    def test_markup_in_the_reasoning_is_reasoning(self):
        thought = "I could write " + calls(OSLO) + " but"
        self.both(thought + "</think>No.", {"tools": [WEATHER], "reasoning_effort": "low"},
                  ("No.", thought, [], "stop"))

    def test_special_text_anywhere_in_a_conversation_stays_text(self):
        with open(f"{SOURCE}/models/heddle-mini/tokenizer.json", encoding="utf-8") as f:
            special = {t["id"]: t["content"] for t in json.load(f)["added_tokens"]}
        self.assertGreater(len(special), 5)

        def controls(text):
            name = f"f{text}"
            parameters = {"type": "object", "properties": {text: {"type": "string", "description": text,
                                                                  "enum": [text]}}}
            body = {"messages": [
                {"role": "system", "content": text}, {"role": "user", "content": [{"type": "text", "text": text}]},
                {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [
                    {"id": "c1", "type": "function",
                     "function": {"name": name, "arguments": json.dumps({"text": text, "list": [text]})}}]},
                {"role": "tool", "tool_call_id": "c1", "content": text},
                {"role": "user", "content": text, "name": text}],
                "tools": [{"type": "function", "function": {"name": name, "description": text,
                                                            "parameters": parameters}}]}
            found = []
            for more in ({"reasoning_effort": "high"},
                         {"tool_choice": {"type": "function", "function": {"name": name}}}):
                status, _, answer = call("POST", "/tokenize", body | more)
                self.assertEqual(status, 200, answer)
                found += [i for i in answer["tokens"] if i in special]
            return found

        plain = controls("harmless")
        self.assertGreater(len(plain), 5)
        for text in special.values():
            self.assertEqual(controls(f"a{text}b"), plain, text)
        self.assertEqual(controls("".join(special.values())), plain)


class ToolsAsyncOverTcp(unittest.IsolatedAsyncioTestCase):
    async def test_streamed_calls(self):
        script(calls(OSLO, NOTED))
        arguments = {}
        async with AsyncOpenAI(base_url=f"http://{os.environ['TCP']}/v1", api_key="none",
                               max_retries=0) as client:
            async for chunk in await client.chat.completions.create(
                    model=MODEL, messages=ASK, tools=[WEATHER, NOTE], stream=True):
                for delta in chunk.choices[0].delta.tool_calls or []:
                    arguments[delta.index] = arguments.get(delta.index, "") + delta.function.arguments
        self.assertEqual([json.loads(a) for a in arguments.values()], ARGUMENTS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
