"""Inputs that failed once, and the invariants of the fuzzer on each case of the table."""

import logging

import pytest

from tests.fuzz.fuzz_connection import MAX_INPUT, check, encode
from tests.transports.http.wire.cases import CASES, CHUNKED, head

FAILED = {
    "a head of two faults is cut": head("Origin: a\r\norigin: b\r\n", "GET /health HTTP/0.1")[:-1] + b"\xc3",
    "the body of HEAD is refused": head(CHUNKED, "HEAD /health HTTP/1.1") + b"0\r\na\0: b\r\n\r\n",
    "a line end is half in a body": head("Content-Length: 3\r\n") + b"ab\r\nGET",
}


@pytest.mark.parametrize("data", FAILED.values(), ids=FAILED)
def test_an_input_that_failed_once_passes(data: bytes) -> None:
    for place in range(len(data)):
        check(encode(data, place))


@pytest.mark.parametrize("what", CASES)
def test_each_case_of_the_table_keeps_the_invariants(what: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for case in CASES[what]:
        if len(case.data) < MAX_INPUT // 2:
            check(encode(case.data * 2, 32, 64))
