#!/usr/bin/env python3
"""Records what EleutherAI's harness asks, for clients_lm_eval.py to replay without it.

    pip install 'lm-eval[api]' transformers
    python3 tests/e2e/clients_lm_eval_record.py --build build >tests/e2e/clients_lm_eval.json

Two tasks are made on the spot from models/heddle-mini/golden.json: choices between the five most probable
first tokens of an answer (loglikelihood), and whole answers up to a stop string (generate_until). lm_eval
runs them in the forms that people use, through a proxy that writes down its requests. What is right is
what golden.json says, which is transformers' word, not heddled's.

    python3 tests/e2e/clients_lm_eval_record.py --build build --known

records nothing: the harness itself encodes, asks and adds up what clients_lm_eval_known.json holds, and its
results are compared with the reference's. That shows that the tokenisation there is the harness' own.
"""
import argparse
import http.client
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
os.environ |= {"HEDDLE_SRCDIR": SOURCE, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
sys.path.insert(0, HERE)

import lm_eval  # noqa: E402
import transformers  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from clients_known import BOS, KNOWN, MODEL, TOLERANCE, USER  # noqa: E402

ASKED = [KNOWN[i] for i in (0, 2, 3, 5)]  # three short ones and a needle
STOPS = [".", "\n\n", " How"]


def choices(known, tokenizer):
    """text -> (log-probability, whether it is the best) of the tokens that stay one in their place."""
    found = {}
    for token, logprob in known.top.items():
        text = tokenizer.decode([token])
        if token > 6 and tokenizer(known.prompt + text).input_ids == known.prompt_ids + [token]:
            found[text] = logprob, token == known.answer_ids[0]
    return found


def tasks(directory, tokenizer):
    rows = {
        "choice": [{"ask": k.prompt, "choices": list(choices(k, tokenizer)), "gold": 0} for k in ASKED],
        "until": [{"ask": k.prompt, "gold": k.answer} for k in ASKED],
        "chat": [{"ask": k.message, "gold": k.answer} for k in ASKED],
    }
    kinds = {
        "choice": "output_type: multiple_choice\ndoc_to_text: ask\ndoc_to_choice: choices\n"
                  "doc_to_target: gold\ntarget_delimiter: ''\n",
        "until": "output_type: generate_until\ndoc_to_text: ask\ndoc_to_target: gold\n"
                 f"generation_kwargs:\n  until: {json.dumps(STOPS)}\n  max_gen_toks: 24\n"
                 "  do_sample: false\n  temperature: 0\nmetric_list: [{metric: exact_match}]\n",
    }
    kinds["chat"] = kinds["until"]
    for name, kind in kinds.items():
        data = f"{directory}/{name}.jsonl"
        with open(data, "w", encoding="utf-8") as f:
            for row in rows[name]:
                print(json.dumps(row), file=f)
        with open(f"{directory}/{name}.yaml", "w", encoding="utf-8") as f:
            f.write(f"task: heddle_{name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
                    f"    test: {data}\ntest_split: test\n{kind}")


class Recorder(http.server.ThreadingHTTPServer):
    """Passes requests on to the daemon and keeps them."""

    daemon_threads = True

    def __init__(self, upstream):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.kept = upstream, []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {k.lower(): v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
        connection = http.client.HTTPConnection(self.server.upstream)
        connection.request("POST", self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            print(data.decode(), file=sys.stderr)
        self.server.kept.append({"path": self.path, "headers": headers, "body": json.loads(body)})
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def start_heddle(build, directory):
    log = open(f"{directory}/log", "w+", encoding="utf-8")
    daemon = subprocess.Popen(
        [f"{build}/heddled", "-f", "-s", f"model.path={MODEL}", "-s", f"listen.socket={directory}/s", "-s",
         "listen.tcp=127.0.0.1:0", "-s", "attention.kv=f32", "-s", "attention.index_key=f32"],
        env=os.environ | {"HEDDLE_WORKER": f"{build}/heddle-worker"}, stderr=log)
    while "main: serving" not in open(log.name, encoding="utf-8").read():
        assert daemon.poll() is None
        time.sleep(0.1)
    text = open(log.name, encoding="utf-8").read()
    return daemon, text.split("listening on 127.0.0.1:")[1].split("\n")[0]


FORMS = {  # what the command line would have as --model_args
    "tokens in batches": {"batch_size": 4},
    "tokens, concurrent": {"num_concurrent": 3},
    "text": {"tokenized_requests": False},
}


def run(form, arguments, names, recorder, directory):
    """One run of the harness: its requests."""
    chat = names == ["chat"]
    recorder.kept = []
    base = f"http://127.0.0.1:{recorder.server_address[1]}/v1/{'chat/' if chat else ''}completions"
    results = lm_eval.simple_evaluate(
        model="local-chat-completions" if chat else "local-completions",
        model_args={"model": "heddle-mini", "base_url": base, "max_length": 2048, "max_retries": 1}
        | ({} if chat else {"tokenizer": MODEL, "tokenizer_backend": "huggingface"}) | arguments,
        tasks=[f"heddle_{n}" for n in names], task_manager=TaskManager(include_path=directory),
        apply_chat_template=chat, bootstrap_iters=0, log_samples=True)
    metrics = {n: {k: v for k, v in r.items() if isinstance(v, float)} for n, r in results["results"].items()}
    print(form, metrics, file=sys.stderr)
    return list(recorder.kept)


def cut(text):
    """Before the stop string that comes first."""
    return text[:min([text.index(stop) for stop in STOPS if stop in text] or [len(text)])]


def expected(body, tokenizer):
    """What each choice of the answer must give: {"context", "sum", "greedy"} or {"text"}."""
    prompts = body["prompt"] if "prompt" in body else [BOS + USER + body["messages"][0]["content"]]
    right = []
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        text = tokenizer.decode(prompt) if isinstance(prompt, list) else prompt
        known = next(k for k in ASKED if text.startswith(k.prompt) or text == BOS + USER + k.message)
        if body.get("echo"):
            total, greedy = choices(known, tokenizer)[text.removeprefix(known.prompt)]
            right.append({"context": len(known.prompt_ids), "sum": total, "greedy": greedy})
        else:
            right.append({"text": cut(known.answer)})
    return right


def compare_known(port):
    """Prints the harness' own results beside the reference's; the number of those that differ."""
    with open(f"{HERE}/clients_lm_eval_known.json", encoding="utf-8") as f:
        known = json.load(f)

    def model(max_length):
        return get_model("local-completions")(
            model="heddle-mini", base_url=f"http://127.0.0.1:{port}/v1/completions", tokenizer=MODEL,
            tokenizer_backend="huggingface", max_length=max_length, max_retries=1)

    def instances(kind, arguments):
        return [Instance(kind, {}, tuple(a), i) for i, a in enumerate(arguments)]

    pairs, rolling, until = known["pairs"], known["rolling"], known["until"]
    rows = [(case["why"], said, (sum(case["logprobs"]), case["greedy"])) for case, said in zip(
        pairs, model(known["max_length"]).loglikelihood(instances("loglikelihood", [c["text"] for c in pairs])))]
    rows += [("rolling", (said, None), (sum(sum(w["logprobs"]) for w in case["windows"]), None))
             for case, said in zip(rolling, model(known["rolling_length"]).loglikelihood_rolling(
                 instances("loglikelihood_rolling", [(c["text"],) for c in rolling])))]
    wrong = 0
    for why, (total, greedy), (right, right_greedy) in rows:
        good = abs(total - right) <= TOLERANCE and greedy == right_greedy
        wrong += not good
        print(f"{'' if good else 'WRONG '}{why}: {total:.6f} {greedy}, reference {right:.6f} {right_greedy}")
    texts = model(2048).generate_until(instances("generate_until", [
        (c["context"], {"until": c["until"], "max_gen_toks": c["max_gen_toks"]}) for c in until]))
    for case, said in zip(until, texts):
        wrong += said != case["text"]
        print(f"{'' if said == case['text'] else 'WRONG '}{said!r}, reference {case['text']!r}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--known", action="store_true")
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    with tempfile.TemporaryDirectory() as directory:
        tasks(directory, tokenizer)
        daemon, port = start_heddle(build, directory)
        try:
            if args.known:
                sys.exit(compare_known(port))
            recorder = Recorder(f"127.0.0.1:{port}")
            runs = {form: run(form, a, ["choice", "until"], recorder, directory) for form, a in FORMS.items()}
            runs["chat"] = run("chat", {}, ["chat"], recorder, directory)
        finally:
            daemon.terminate()
            daemon.wait()
    json.dump({"lm_eval": lm_eval.__version__, "runs": {
        form: [r | {"right": expected(r["body"], tokenizer)} for r in requests]
        for form, requests in runs.items()}}, sys.stdout, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
