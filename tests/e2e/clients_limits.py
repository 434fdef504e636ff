#!/usr/bin/env python3
"""The limits of heddle.ini as a client meets them (clients_limits.bats sets them low): how long a request, its
body, its turn and its reader may take, and how much there may be of each.

$SOCKET, $TCP"""
import json
import os
import socket
import unittest

from clients_known import HELLO, call, wait_until, wait_until_idle

PATIENCE = 180
ENDLESS = {"prompt": "Hello", "ignore_eos": True, "max_tokens": 60000, "stream": True}


def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(PATIENCE)
    s.connect(os.environ["SOCKET"])
    return s


def send(body, path="/v1/completions", length=None):
    s = connect()
    data = json.dumps(body).encode()
    s.sendall(f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
              f"content-length: {length or len(data)}\r\n\r\n".encode() + data)
    return s


def read_all(s):
    """(status, head, body) of what comes until heddled closes."""
    data = b""
    while more := s.recv(65536):
        data += more
    s.close()
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body.decode()


def first_event(s):
    data = b""
    while b"\ndata: " not in data:
        more = s.recv(65536)
        assert more, data
        data += more


def metric(name):
    return float(next(line.split()[1] for line in call("GET", "/metrics")[2].splitlines()
                      if line.split()[0] == name))


class Limits(unittest.TestCase):
    def tearDown(self):
        wait_until_idle()
        status, _, answer = call("POST", "/v1/completions",
                                 {"prompt": HELLO.prompt_ids, "temperature": 0, "max_tokens": 30})
        self.assertEqual((status, answer["choices"][0]["text"]), (200, HELLO.answer))

    def refused(self, answer, status, code):
        got, head, body = answer
        self.assertEqual(got, status, body)
        self.assertIn("connection: close", head)
        error = json.loads(body)["error"]
        self.assertEqual(error["code"], code)
        return error["message"]

    def test_a_head_that_does_not_come_is_408(self):
        s = connect()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost:")
        self.refused(read_all(s), 408, "request_timeout")

    def test_a_body_that_stops_is_408(self):
        self.refused(read_all(send({"prompt": "a"}, length=500)), 408, "request_timeout")

    def test_a_body_over_the_limit_is_413_and_names_the_key(self):
        self.assertIn("api.max_body", self.refused(read_all(send({"prompt": "a" * 3000})), 413, "body_too_large"))

    def test_a_turn_that_does_not_come_is_503_and_says_when_to_come_back(self):
        s = send(ENDLESS | {"n": 4})
        first_event(s)
        status, headers, answer = call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        self.assertEqual(status, 503)
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertIn("schedule.queue_timeout", answer["error"]["message"])
        s.close()

    def test_a_connection_too_many_is_503(self):
        busy = [send(ENDLESS) for _ in range(4)]
        self.addCleanup(lambda: [s.close() for s in busy])
        for s in busy:
            first_event(s)
        message = self.refused(read_all(connect_and_ask()), 503, "overloaded")
        self.assertIn("api.max_connections", message)
        for s in busy:
            s.close()

    def test_a_client_that_does_not_read_is_dropped(self):
        before = metric('heddle_requests_total{outcome="aborted"}')
        s = send(ENDLESS | {"logprobs": 20})
        wait_until(lambda status: metric('heddle_requests_total{outcome="aborted"}') == before + 1)
        s.close()


def connect_and_ask():
    s = connect()
    s.sendall(b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n")
    return s


if __name__ == "__main__":
    unittest.main(verbosity=2)
