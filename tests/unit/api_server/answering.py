"""A server to be tested against, run as a script with a port: what a request's message says is what happens to it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = "n1 n2 n3"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.answer(200, json.dumps({"data": [{"id": "stub"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        os.write(1, b"asked\n")
        what, _, number = body["messages"][-1]["content"].partition(" ")
        if what == "signal":
            os.kill(os.getpid(), int(number))
        elif what == "exit":
            os._exit(int(number))
        elif what == "wait":
            threading.Event().wait()
        elif what == "status":
            self.answer(int(number), "out of order")
        elif what == "garbage":
            self.answer(200, number)
        elif what == "drop":
            if number:
                threading.Timer(float(number), os._exit, [3]).start()
        elif body.get("stream"):
            self.stream(what)
        else:
            usage = {"prompt_tokens": 5, "completion_tokens": 3}
            choice = {"message": {"content": f"{what}: {TEXT}"}, "finish_reason": "stop"}
            self.answer(200, json.dumps({"model": body["model"], "choices": [choice], "usage": usage}))

    def stream(self, what: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.event({"choices": [{"delta": {"role": "assistant"}}]})
        if what == "mute":
            threading.Event().wait()
        for piece in (f"{what}: ", *TEXT.partition(" ")):
            self.event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
        if what == "stuck":
            threading.Event().wait()
        self.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if what == "torn":
            self.wfile.write(b"data: {\n\n")
        elif what != "endless":
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, event: Any) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:  # without the name look-up that HTTPServer makes
        self.socket.setsockopt(1, 2, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "stub", self.server_address[1]


server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
os.write(1, b"input backend=turbomind\n")
server.serve_forever()
