"""Ctrl-C ends a command whatever thread the system gives the signal to, and what it was doing is taken down."""

import signal
import subprocess
import sys

import pytest

from tests.clients.raw_client import PATIENCE

WORK = """
import asyncio, signal, sys, threading
from toolgate.server.base import run_loop as running

async def main():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # another thread has it: none of our waits is broken off
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        print("taken down", flush=True)
        await asyncio.sleep({more})

try:
    running.run_interruptible(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def begun(more: int) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", WORK.format(more=more)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def test_ctrl_c_is_heard_while_the_loop_sleeps() -> None:
    with begun(0) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "taken down\n"
        assert process.returncode == 130


def test_ctrl_c_twice_ends_what_takes_long_to_be_taken_down() -> None:
    with begun(60) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "taken down\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


ENDED = """
import asyncio, os, signal, sys, time
from toolgate.server.base import run_loop

run_loop.run_server(lambda: asyncio.sleep(0), asyncio.new_event_loop)
os.kill(os.getpid(), int(sys.argv[1]))
time.sleep(30)
sys.exit(5)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_end_ends_the_process_at_once_and_well(number: signal.Signals) -> None:
    words = [sys.executable, "-c", ENDED, str(int(number))]
    assert subprocess.run(words, timeout=PATIENCE, check=False).returncode == 0
