"""Replies of Redis are parsed in whatever pieces they arrive."""

import pytest

from toolgate.server.base.bus.redis.reply_parser import INCOMPLETE, RefusedError, ReplyParser

REPLIES = b"+OK\r\n:-7\r\n$-1\r\n$5\r\na\r\nb\xff\r\n*3\r\n:1\r\n*1\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n-ERR no\r\n"
PARSED = [b"OK", -7, None, b"a\r\nb\xff", [1, [b""], None], None, []]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_pieces_of_any_size_give_the_same_replies(size: int) -> None:
    parser, found = ReplyParser(), []
    for begin in range(0, len(REPLIES), size):
        parser.feed(REPLIES[begin : begin + size])
        while (reply := parser.take()) is not INCOMPLETE:
            found.append(reply)
    assert found[:-1] == PARSED
    assert isinstance(found[-1], RefusedError) and str(found[-1]) == "ERR no"


def test_a_large_reply_between_small_ones_is_whole() -> None:
    parser, large = ReplyParser(), b"x" * 200_000
    parser.feed(b":1\r\n$200000\r\n" + large + b"\r\n:2\r\n")
    assert [parser.take() for _ in range(4)] == [1, large, 2, INCOMPLETE]


def test_another_protocol_is_refused() -> None:
    parser = ReplyParser()
    parser.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ValueError, match="not a reply"):
        parser.take()
