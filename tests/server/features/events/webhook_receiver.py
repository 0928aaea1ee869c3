"""A receiver of webhooks over TLS, in threads: it returns challenges and records what it gets, as a client would."""

import contextlib
import http.server
import json
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from standardwebhooks import Webhook

from tests.clients.raw_client import PATIENCE


@dataclass
class Received:
    headers: dict[str, str]
    body: bytes

    def verify(self, secret: str) -> Any:
        """Return the JSON. Raises WebhookVerificationError unless `secret` has signed it."""
        return Webhook(secret).verify(self.body, self.headers)


class WebhookReceiver:
    """`answers`: statuses for the next deliveries, then 204."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.challenges: list[Received] = []
        self.deliveries: list[Received] = []
        self.answers: deque[int] = deque()
        self._news = threading.Condition()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = self.rfile.read(size)
                if len(body) < size:  # its sender was killed
                    return
                status, answer = receiver.take(
                    Received({name.lower(): text for name, text in self.headers.items()}, body)
                )
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_address[1]}/hook"

    def take(self, received: Received) -> tuple[int, bytes]:
        content = json.loads(received.body)
        with self._news:
            if content.get("type") == "verification":
                self.challenges.append(received)
                return 200, json.dumps({"challenge": content["challenge"]}).encode()
            self.deliveries.append(received)
            self._news.notify_all()
            return (self.answers.popleft() if self.answers else 204), b""

    def wait(self, count: int, timeout: float = PATIENCE) -> list[Received]:
        """Return the deliveries when there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.deliveries) >= count, timeout), len(self.deliveries)
            return list(self.deliveries)


@contextlib.contextmanager
def webhook_receiver(context: ssl.SSLContext) -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver(context)
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join(PATIENCE)
