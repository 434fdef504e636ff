"""A person at a terminal, talking to `heddle chat`: types, waits for what must appear, presses Ctrl-C.

usage: client_chat.py DIR HEDDLE: the server of client_server.py listens on DIR/s."""
import os
import pty
import select
import sys
import time

DIR, HEDDLE = sys.argv[1:3]
pid, fd = pty.fork()
if pid == 0:
    os.execv(HEDDLE, [HEDDLE, "-S", DIR + "/s", "chat", "--system", "Be brief."])
seen = b""


def expect(text):
    """Waits until text has appeared, and forgets what came up to it."""
    global seen
    deadline = time.monotonic() + 180
    while text not in seen:
        if not select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"{text!r} does not appear; seen: {seen!r}")
        try:
            seen += os.read(fd, 4096)
        except OSError:
            sys.exit(f"the program is gone before {text!r}; seen: {seen!r}")
    seen = seen.split(text, 1)[1]


def type_(text):
    os.write(fd, text)


expect(b"> ")
type_(b"\x03")                      # at the prompt: a hint, no end
expect(b"Ctrl-D leaves")
expect(b"> ")
type_(b"hello\n")
expect("Hello, w\u00f6rld! \u20ac".encode())
expect(b"> ")
type_(b"slow\n")
expect(b"one piece")
type_(b"\x03")                      # stops the answer, not the program
expect(b"stopped")
expect(b"> ")
type_(b"evil\n")                    # no escape sequence reaches the terminal
expect(b"a\xef\xbf\xbd[2Jb")
expect(b"> ")
type_(b"refuse\n")                  # an error is shown and the conversation goes on
expect(b"temperature must be at least 0")
expect(b"> ")
type_(b"think\n")
expect(b"let me see")
expect(b"42")
expect(b"> ")
with open(DIR + "/request.json", "rb") as f:
    import json
    roles = [(m["role"], m["content"]) for m in json.load(f)["messages"]]
want = [("system", "Be brief."), ("user", "hello"), ("assistant", "Hello, w\u00f6rld! \u20ac"),
        ("user", "evil"), ("assistant", "a\x1b[2Jb"), ("user", "think")]
if roles != want:
    sys.exit(f"the conversation is {roles}, it should be {want}")
type_(b"/reset\n")
expect(b"new conversation")
expect(b"> ")
type_(b"hello\n")
expect(b"Hello")
expect(b"> ")
with open(DIR + "/request.json", "rb") as f:
    roles = [m["role"] for m in json.load(f)["messages"]]
if roles != ["system", "user"]:
    sys.exit(f"after /reset: {roles}")
type_(b"/what\n")
expect(b"/quit")
expect(b"> ")
type_(b"\x04")
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
