"""A real HTTP server on loopback that speaks the chat-completions protocol."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = str | int


class ChatServer:
    """A server that counts requests and answers each with what `reply` makes of its prompt.

    `reply` returns the text of the answer, or an HTTP status to fail with.
    """

    def __init__(self, url: str, reply: Callable[[str], Reply]) -> None:
        self.url = url
        self.reply = reply
        self.prompts: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    def respond(self, headers: dict[str, str], request: dict) -> tuple[int, dict]:
        (message,) = request["messages"]
        with self.lock:
            self.prompts.append(message["content"])
            self.headers.append(headers)
            text = self.reply(message["content"])
        if isinstance(text, int):
            return text, {"error": {"message": "refused by the test", "type": "test"}}
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
        }
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"]}
        return 200, {**body, "choices": [choice]}


@contextmanager
def serve(reply: Callable[[str], Reply]) -> Iterator[ChatServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            status, body = server.respond({k.lower(): v for k, v in self.headers.items()}, request)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("retry-after-ms", "1")  # so that the client's retries do not wait
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = ChatServer(f"http://127.0.0.1:{http.server_port}/v1", reply)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
