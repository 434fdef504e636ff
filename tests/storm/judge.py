"""What a right answer is: OpenAI's error object, or a result that holds together, whatever the
request was. Raises Wrong; returns a word for the table of outcomes."""
import json

from answer import Wrong

FINISH = {"stop", "length", "tool_calls"}
# 5xx that the daemon may give while it is healthy, by code
BUSY = {503: {"overloaded"}, 501: None, 505: None}


def pairs(items):
    d = dict(items)
    if len(d) != len(items):
        raise Wrong(f"a key twice in {items!r:.300}")
    return d


def no_constant(name):
    raise Wrong(f"{name} is not JSON")


def strict_json(data):
    """JSON as RFC 8259 has it, no key twice."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=no_constant)
    except ValueError as e:
        raise Wrong(f"not JSON ({e}): {data[:300]!r}") from None


def need(condition, what, thing):
    if not condition:
        raise Wrong(f"{what}: {thing!r:.600}")


def error_object(e):
    need(isinstance(e, dict) and set(e) == {"message", "type", "param", "code"}, "error object", e)
    need(isinstance(e["message"], str) and e["message"].strip(), "error.message", e)
    need(isinstance(e["type"], str) and e["type"].endswith("_error"), "error.type", e)
    need(e["param"] is None or (isinstance(e["param"], str) and e["param"]), "error.param", e)
    need(e["code"] is None or isinstance(e["code"], str), "error.code", e)


def judge_error(answer, to_head):
    need(answer.headers.get("content-type") == "application/json", "type of an error", answer.headers)
    if answer.status == 405:
        need(answer.headers.get("allow"), "405 without allow", answer.headers)
    if answer.status == 429:
        need(answer.headers.get("retry-after"), "no retry-after", answer.headers)
    if to_head:
        need(answer.body == b"", "a body for HEAD", answer.body)
        return str(answer.status)
    value = strict_json(answer.body)
    need(set(value) == {"error"}, "an error's body", value)
    error_object(value["error"])
    if answer.status >= 500:
        codes = BUSY.get(answer.status, set())
        need(codes is None or value["error"]["code"] in codes, f"{answer.status}", value)
    return str(answer.status)


def usage(u):
    need(u["prompt_tokens"] + u["completion_tokens"] == u["total_tokens"], "usage", u)
    need(0 <= u["prompt_tokens_details"]["cached_tokens"] <= u["prompt_tokens"], "usage", u)


def judge_chat(v):
    need(v["object"] == "chat.completion" and v["id"].startswith("chatcmpl-"), "chat", v)
    for i, c in enumerate(v["choices"]):
        m = c["message"]
        need(c["index"] == i and c["finish_reason"] in FINISH, "choice", c)
        need(m["role"] == "assistant", "role", c)
        need(isinstance(m["content"], str) or m["content"] is None, "content", c)
        need((c["finish_reason"] == "tool_calls") <= bool(m.get("tool_calls")), "tool_calls", c)
    need(v["choices"], "choices", v)
    usage(v["usage"])


def judge_text(v):
    need(v["object"] == "text_completion" and v["id"].startswith("cmpl-"), "completion", v)
    for i, c in enumerate(v["choices"]):
        need(c["index"] == i and c["finish_reason"] in FINISH, "choice", c)
        need(isinstance(c["text"], str), "text", c)
        lists = c["logprobs"]
        if lists is not None:
            sizes = {len(lists[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
            need(len(sizes) == 1, "lists of one length", lists)
    need(v["choices"], "choices", v)
    usage(v["usage"])


def judge_tokens(v):
    need(v["count"] == len(v["tokens"]), "count", v)
    need(all(isinstance(t, int) and t >= 0 for t in v["tokens"]), "tokens", v)


def judge_events(answer):
    """A stream of server-sent events; may end with an error event and no [DONE]."""
    need(answer.body.endswith(b"\n\n"), "end of the stream", answer.body[-200:])
    ended = failed = False
    text = answer.body.decode("utf-8", "strict")
    for event in text[:-2].split("\n\n"):
        need(not ended and not failed, "an event after the last", event)
        if event.startswith(": "):
            need("\n" not in event, "comment", event)
            continue
        need(event.startswith("data: ") and "\n" not in event, "event", event)
        if event == "data: [DONE]":
            ended = True
            continue
        v = strict_json(event[6:].encode())
        if "error" in v:
            error_object(v["error"])
            failed = True
            continue
        for c in v["choices"]:
            need(c["finish_reason"] is None or c["finish_reason"] in FINISH, "event", v)
            need(isinstance(c.get("text", c.get("delta")), (str, dict)), "event", v)
        if v.get("usage"):
            usage(v["usage"])
    need(ended or failed, "a stream without an end", answer.body[-200:])
    need(ended or answer.closes or not answer.whole, "a failed stream that looks whole", answer.body[-200:])
    return "200 stream" if ended else "200 stream, error"


RESULTS = {
    "/v1/chat/completions": judge_chat,
    "/v1/completions": judge_text,
    "/tokenize": judge_tokens,
    "/detokenize": lambda v: need(isinstance(v["prompt"], str), "prompt", v),
    "/v1/models": lambda v: need(v["object"] == "list" and len(v["data"]) == 1, "models", v),
    "/v1/models/heddle-mini": lambda v: need(v["id"] == "heddle-mini", "model", v),
    "/health": lambda v: need(v["status"] == "ready", "health", v),
    "/status": lambda v: need(v["health"] == "ready" and len(v["workers"]) == 2, "status", v),
    "/version": lambda v: need(v["version"], "version", v),
}


def judge_metrics(text):
    need(text.endswith("\n"), "metrics", text[-200:])
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            need(name.startswith("heddle_"), "metric", line)
            float(value)


def judge_result(answer, path, to_head):
    kind = answer.headers.get("content-type", "")
    if to_head:
        need(answer.body == b"", "a body for HEAD", answer.body)
        return "200"
    if kind.startswith("text/event-stream"):
        return judge_events(answer)
    if kind.startswith("text/plain"):
        judge_metrics(answer.body.decode("utf-8", "strict"))
        return "200"
    need(kind == "application/json", "type", answer.headers)
    value = strict_json(answer.body)
    if path is None:  # the request was damaged: which call it became is not known here
        need(isinstance(value, dict), "result", value)
    elif path in RESULTS:
        RESULTS[path](value)
    else:
        raise Wrong(f"200 for {path}")
    return "200"


def judge(answer, path, to_head, allowed):
    """allowed: the statuses that may be, or None. path: None where it is not known."""
    try:
        if allowed is not None and answer.status not in allowed:
            raise Wrong(f"{answer.status}, not {sorted(allowed)}: {answer.body[:600]!r}")
        if answer.status == 200:
            return judge_result(answer, path, to_head)
        need(answer.status >= 400, "status", answer.status)
        return judge_error(answer, to_head)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:
        raise Wrong(f"{type(e).__name__} {e} in {answer.status} {answer.body[:600]!r}") from e
