"""Speak HTTP/1.1 on one connection: bytes in, one request at a time, one answer, bytes out.

Enter at `listener` and `connection`, which uvicorn makes for each socket. It imports no other room of the transports.

    socket > HttpConnection > read_head > Exchange > handler(HttpRequest) > Answer > Exchange > HttpConnection > socket

- One request at a time. What follows it stays unparsed, 64 KiB at most; then reading stops.
- The handler is a plain function, called when the head is there. Its answer is a `WholeResponse` (sent at once), a
  `PendingResponse` (decided by its work), a `StreamedResponse` (written in parts by a task), or an awaitable of one.
- A body that came with its head is `HttpRequest.body`. Another one is read in parts, no faster than its reader reads.
- A whole answer waits for the end of the body, whose rest is dropped: a client that still sends may not read yet.
- After an error nothing is parsed. Its 400 comes after the answers of the requests before it.
- A connection has one deadline, and all connections one clock.

Two caches: the head of a repeated request (a fifth of a small call), and the writes of one turn of the event loop
(another fifth, with eight clients). A request takes one of 24 ways: its head is cached or not, its body is whole, in
parts or chunked, and its answer is one of four.

Source: RFC 9110, RFC 9112. docs/http.md has the table of what is refused.
"""
