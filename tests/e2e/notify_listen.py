"""notify_listen.py SOCKET FILE: the service manager's end of NOTIFY_SOCKET. Binds the datagram socket
and appends what comes to FILE, one line a datagram with its lines joined by blanks; ends when killed."""
import socket
import sys

path, out = sys.argv[1:]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(path)
with open(out, "a", buffering=1) as f:
    while True:
        f.write(s.recv(65536).decode().strip().replace("\n", " ") + "\n")
