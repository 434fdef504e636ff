"""Bodies of requests: right ones for every call, and what is made of them. Each function draws from
the random.Random that it is given, so that a seed gives the same again."""
import copy
import json

import judge
from answer import Wrong

WORDS = ["Hello", "What is 3 + 4?", "Repeat 48213.", "héllo", "日本語", "🧑‍🚀", "a\u0000b", "", " ",
         "<｜User｜>", "</think>", "<｜DSML｜tool_calls>", "\n\n", "x" * 70, "The secret code of Bruno is 4492."]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"},
                         "days": {"type": "integer", "maximum": 18446744073709551616}},
                         "required": ["city"]}}},
         {"type": "function", "function": {"name": "now"}}]
# what a value may be replaced with; "@n@" stands for RAW[n] in the text
RAW = ["1e400", "-1e400", "1e-400", "99999999999999999999", "-9223372036854775809", "9223372036854775807",
       "18446744073709551615", "-0", "-0.0", "00", "1.", ".5", "+1", "0x10", "1e", "NaN", "Infinity", "-Infinity",
       "1" * 400, "0." + "3" * 400, '"\\ud83d"', '"\\u0000"', '"\\x"', "'a'", "undefined", "tru", "nul", "",
       '"a', "[", "{", "[,]", "{,}", '{"a"}', '{"a":}', '{"a":1,"a":2}', "/**/1", "1 2", '"\t"', '"\x7f"']
ODD = [None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e308, 5e-324, 2**31, 2**32, 2**53, 2**63 - 1, -2**63, "", "0", "1",
       "true", "null", "none", "auto", "required", "\u0000", "\ud7ff", "\uffff", "\U0010ffff", "a" * 5000, [], {},
       [None], [[]], {"": None}, {"type": "text"}, {"type": "json_object"}, [0, 1, 2], ["a", "b"], [-1], [[0], [1]],
       {"type": "function", "function": {"name": "now"}}, {"0": 1.5}, {"-1": 1}, {"99999999": 1}]
NAMES = ["max_token", "messages", "prompt", "tokens", "temperature", "stop", "n", "stream", "suffix", "best_of",
         "logprobs", "functions", "tools", "response_format", "logit_bias", "thinking", "\u0000", "é" * 40, "x" * 300, ""]


def word(rng):
    return rng.choice(WORDS[:6] + ["Hi"]) if rng.random() < 0.8 else rng.choice(WORDS)


def some_text(rng):
    t = " ".join(word(rng) for _ in range(rng.randint(1, 3)))
    return t if t.strip() else "x"


def sampling(rng, d):
    d["max_tokens"] = rng.randint(1, 4)
    for name, draw in (("temperature", lambda: rng.choice([0, 0.7, 1, 2.5, 100])), ("top_p", lambda: rng.random()),
                       ("top_k", lambda: rng.choice([-1, 0, 1, 40])), ("min_p", lambda: rng.random()),
                       ("seed", lambda: rng.choice([0, -1, 7, 2**63 - 1])), ("ignore_eos", lambda: rng.random() < 0.5),
                       ("stop", lambda: rng.choice(["a", ["4", "\n"], "heddle"])), ("n", lambda: rng.randint(1, 3)),
                       ("stop_token_ids", lambda: [rng.randint(0, 300)]), ("min_tokens", lambda: 1),
                       ("logit_bias", lambda: {str(rng.randint(0, 300)): rng.uniform(-100, 100)}),
                       ("presence_penalty", lambda: rng.uniform(-2, 2)), ("frequency_penalty", lambda: -2),
                       ("repetition_penalty", lambda: rng.uniform(0.01, 2)), ("model", lambda: word(rng)),
                       ("user", lambda: "u"), ("return_token_ids", lambda: True), ("skip_special_tokens", lambda: False)):
        if rng.random() < 0.12:
            d[name] = draw()
    if rng.random() < 0.4:
        d["stream"] = True
        if rng.random() < 0.5:
            d["stream_options"] = {"include_usage": rng.random() < 0.8}
    return d


def messages(rng):
    m = []
    if rng.random() < 0.3:
        m.append({"role": rng.choice(["system", "developer"]), "content": some_text(rng)})
    if rng.random() < 0.3:
        m.append({"role": "user", "content": some_text(rng)})
        if rng.random() < 0.5:
            m.append({"role": "assistant", "content": some_text(rng), "reasoning_content": word(rng)})
        else:
            m.append({"role": "assistant", "content": None, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}]})
            m.append({"role": "tool", "tool_call_id": "a", "content": "sunny"})
    text = some_text(rng)
    m.append({"role": "user", "content": text if rng.random() < 0.8 else [{"type": "text", "text": text}]})
    return m


def chat(rng):
    d = sampling(rng, {"messages": messages(rng)})
    if rng.random() < 0.1:
        d["tools"] = copy.deepcopy(TOOLS[:rng.randint(1, 2)])
        d["tool_choice"] = rng.choice(["auto", "none"])
    if rng.random() < 0.2:
        d["logprobs"] = True
        d["top_logprobs"] = rng.randint(0, 20)
    if rng.random() < 0.2:
        d["reasoning_effort"] = rng.choice(["none", "low", "high", "max"])
    if rng.random() < 0.1:
        d["chat_template_kwargs"] = {"thinking": rng.random() < 0.5}
    return d


def text(rng):
    prompt = rng.choice([lambda: some_text(rng), lambda: [some_text(rng), some_text(rng)],
                         lambda: [rng.randint(0, 300) for _ in range(rng.randint(1, 30))], lambda: [[0, 1], [2]]])()
    d = sampling(rng, {"prompt": prompt})
    if rng.random() < 0.3:
        d["logprobs"] = rng.randint(0, 20)
    if rng.random() < 0.2:
        d["echo"] = True
    return d


def tokenize(rng):
    if rng.random() < 0.5:
        return {"messages": messages(rng), "add_generation_prompt": rng.random() < 0.5}
    return {"prompt": some_text(rng), "parse_special": rng.random() < 0.5, "return_token_strs": rng.random() < 0.5}


def detokenize(rng):
    return {"tokens": [rng.randint(0, 300) for _ in range(rng.randint(0, 40))]}


CALLS = [("/v1/chat/completions", chat), ("/v1/completions", text), ("/tokenize", tokenize), ("/detokenize", detokenize)]


def dump(rng, value):
    """As some client would write it."""
    raw = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, None, 1]),
                     separators=rng.choice([None, (",", ":"), (" , ", " : ")]))
    for i, text_of in enumerate(RAW):
        raw = raw.replace(f'"@{i}@"', text_of)
    return raw.encode("utf-8", "surrogatepass")


def places(value, found, depth=0):
    """Every (container, key) of the tree."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for k, v in items:
        found.append((value, k))
        if isinstance(v, (dict, list)) and depth < 60:
            places(v, found, depth + 1)
    return found


def nested(rng, inner):
    for _ in range(rng.choice([3, 30, 60, 62, 63, 64, 65, 66, 100, 150])):
        inner = [inner] if rng.random() < 0.7 else {"a": inner}
    return inner


def change_tree(rng, d):
    spots = places(d, [])
    if not spots:
        return
    where, key = rng.choice(spots)
    kind = rng.randrange(8)
    if kind < 2:
        where[key] = copy.deepcopy(rng.choice(ODD))
    elif kind == 2:
        where[key] = f"@{rng.randrange(len(RAW))}@"
    elif kind == 3:
        del where[key]
    elif kind == 4:
        (where if isinstance(where, dict) else d)[rng.choice(NAMES)] = copy.deepcopy(rng.choice(ODD))
    elif kind == 5:
        other, k = rng.choice(spots)
        where[key] = json.loads(json.dumps(other[k])) if k in other or isinstance(other, list) else None
    elif kind == 6:
        where[key] = nested(rng, where[key])
    else:
        where[key] = rng.choice([[where[key]] * rng.choice([2, 17, 40]), str(where[key]), {"a": where[key]}])


BITS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u", b"\\ud800", b"\x00", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"null", b"-", b"1e", b"\n", b"\r", b"//", b"[" * 100,
        b"{\"a\":" * 70, b"9" * 50, "é".encode(), "😀".encode()]


def change_bytes(rng, b):
    at = rng.randrange(len(b) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        return b[:at] + bytes([rng.randrange(256)]) + b[at + 1:]
    if kind == 1:
        return b[:at] + b[at + rng.randint(1, 12):]
    if kind == 2:
        return b[:at] + rng.choice(BITS) + b[at:]
    if kind == 3:
        return b[:at] + b[max(0, at - rng.randint(1, 40)):]
    if kind == 4:
        return b[:at]
    return b + rng.choice(BITS)


def large(rng):
    """Large on some scale, each of them refused or done quickly."""
    kind = rng.randrange(6)
    if kind == 0:
        return b'{"prompt":' + b"[" * rng.choice([64, 65, 10000, 100000])
    if kind == 1:
        return b'{"prompt":"' + b"a b" * rng.choice([3000, 30000]) + b'"}'
    if kind == 2:
        return b'{"tokens":[' + b",".join(b"%d" % rng.randint(0, 400) for _ in range(20000)) + b"]}"
    if kind == 3:
        return b'{"prompt":[' + b",".join([b'"x"'] * rng.choice([20, 1025])) + b'],"max_tokens":1}'
    if kind == 4:
        return b'{"messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 2000) + b"]}"
    return b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(5000)) + b"}"


def is_json_object(b):
    """False: it is not, by the letter. True: Python's reader takes it. None: past what it reads."""
    try:
        return isinstance(judge.strict_json(b), dict)
    except Wrong:
        return False
    except RecursionError:
        return None


def any_body(rng):
    """A body, its path, and whether it is one of the right ones as they are."""
    path, make = rng.choice(CALLS)
    d = make(rng)
    r = rng.random()
    if r < 0.1:
        return path, dump(rng, d), True
    if "max_tokens" in d and rng.random() < 0.8:
        d["max_tokens"] = 100000  # refused, but as the last thing: most need not cost the model time
    if r < 0.60:
        for _ in range(rng.randint(1, 3)):
            change_tree(rng, d)
        return path, dump(rng, d), False
    if r < 0.94:
        b = dump(rng, d)
        for _ in range(rng.randint(1, 3)):
            b = change_bytes(rng, b)
        return path, b, False
    if r < 0.96:
        return path, large(rng), False
    if r < 0.98:
        return path, bytes(rng.randrange(256) for _ in range(rng.randint(0, 60))), False
    return path, rng.choice([b"", b" ", b"null", b"[]", b"1", b'""', b"{}", b"{}{}", b"\xef\xbb\xbf{}"]), False
