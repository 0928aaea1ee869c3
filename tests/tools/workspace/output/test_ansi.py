"""A command's output as a model reads it: clean, complete however it is read, and cheap."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import Server, eventually
from tests.tools.shell_commands import BOUND, Caller, on_caller, text_of
from toolgate.tools.workspace.output.ansi import OutputCleaner, clean_output

Start = Callable[..., Server]
COLOURED = r"printf '\033[1;31mred\033[0m \033]0;title\007N\bN \033]8;;http://x\033\\link\033]8;;\033\\\n'"
CURL = "  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0"
CURLED = "100 11391  100 11391    0     0  1045k      0 --:--:-- --:--:-- --:--:-- 1112k"
BODY = ", ".join(f'{{"id": {number}}}' for number in range(400))
METER = r"printf '10%%\r50%%\r100%%\033[K\r\nend\r\n'"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[1;31mred\x1b[0m\n", "red\n"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "alink\n"),
        ("\x1bPq#0;2;0;0;0\x1b\\picture \x1b_Ga=T;AAAA\x1b\\gone", "picture gone"),
        ("\x1b(B\x1b=\x1b7x\x1b8\x1bM\x9b1mC1", "xC1"),
        ("\x1b]an introducer alone\nthe next line\x1b", "an introducer alone\nthe next line"),
        ("\x1b[12\nmalformed", "\nmalformed"),
        ("a\r\nb\r\r\n", "a\nb\n"),
        ("10%\r20%\r100%\nok\n", "100%\nok\n"),
        ("10%\r100%\r\x1b[K\n", "100%\n"),
        ("10%\r100%\r       \r", "100%"),
        ("NNAAMMEE".replace("NN", "N\bN").replace("AA", "A\bA").replace("MM", "M\bM").replace("EE", "E\bE"), "NAME"),
        ("_\bu_\bn", "un"),
        ("10%\b\b\b20%\b\b\b\n", "20%\n"),
        ("/\b-\b\\\b|\b done", " done"),
        ("\b\bx", "x"),
        ("bell\x07 tab\tnul\x00 ü", "bell tab\tnul\n ü"),
    ],
)
def test_escape_sequences_are_removed_and_the_last_state_of_a_meter_stays(raw: str, text: str) -> None:
    data = raw.encode()
    assert clean_output(data, final=True) == (text, len(data))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (f"\r{CURL}\r{CURLED}\n{BODY}", f"{CURLED}\n{BODY}"),
        (f"\r{CURL}{BODY}\r{CURLED}\n{BODY}", f"{CURL}{BODY}\n{CURLED}\n{BODY}"),
        (
            f'\r{CURL}{{\n  "id": 1,\n  "na\r{CURLED}\nme": "x"\n}}',
            f'{CURL}{{\n  "id": 1,\n  "na\n{CURLED}\nme": "x"\n}}',
        ),
        ("name,age\rada,36\rgrace,37\r", "name,age\nada,36\ngrace,37"),
        ("import os\rimport sys\rimport re\r", "import os\nimport sys\nimport re"),
    ],
)
def test_text_that_a_meter_is_written_over_stays(raw: str, text: str) -> None:
    data = raw.encode()
    assert clean_output(data, final=True) == (text, len(data))
    for size in (1, 7, 80):
        cleaner = OutputCleaner()
        pieces = [cleaner.feed(data[start : start + size]) for start in range(0, len(data), size)]
        assert "".join(pieces) + cleaner.end(final=True) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            "Receiving: 9% (1/10)\rReceiving: 100% (10/10), 2 KiB\rReceiving: 100% (10/10), done.\n",
            "Receiving: 100% (10/10), done.\n",
        ),
        ("Reading lists... 0%\r\rReading lists... 50%\r\rReading lists... Done\n", "Reading lists... Done\n"),
        ("\r 10%|█   | 1/10\r 50%|██▌ | 5/10\r100%|████| 10/10\n", "100%|████| 10/10\n"),
        ("\r#  9.5%\r###### 50.0%\r########### 100.0%\n", "########### 100.0%\n"),
        ("\x1b[1G\x1b[0K⠙ pack\x1b[1G\x1b[0K⠹ pack\x1b[1G\x1b[0K⠸ pack\n", "⠸ pack\n"),
        ("Fetching\r        \rDone\n", "Done\n"),
        ("".join(f"\x1b[32m{state}\x1b[0m\b" for state in "/-|" * 9) + " \b\n", " \n"),
    ],
)
def test_the_last_state_of_real_programs_meters_stays(raw: str, text: str) -> None:
    data = raw.encode()
    assert clean_output(data, final=True) == (text, len(data))
    for size in (1, 7, 11):
        cleaner = OutputCleaner()
        pieces = [cleaner.feed(data[start : start + size]) for start in range(0, len(data), size)]
        assert "".join(pieces) + cleaner.end(final=True) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"abc\x1b[1", "abc"),
        (b"ab\x1b]0;ti\x1b", "ab"),
        (b"a\xc3", "a"),
        (b"aNM\b\b", "a"),
        (b"a\x1b", "a"),
    ],
)
def test_an_unfinished_end_is_left_for_later(data: bytes, text: str) -> None:
    assert clean_output(data, final=False) == (text, len(text))


def test_output_is_the_same_in_pieces_of_any_size() -> None:
    part = "\x1b[1mbold\x1b[0m é\x1b]0;t\x1b\\x\r\n10%\r20%\r30%\nN\bNA\bA _\bu\n\x1b]8;;u\x07l\x1b]8;;\x07\n"
    sample = (part.encode() + b"\xff\xfe\n") * 3
    whole, _ = clean_output(sample, final=True)
    chance = random.Random(7)
    for _ in range(500):
        cleaner, said, start = OutputCleaner(), "", 0
        while start < len(sample):
            end = start + chance.randint(1, 9)
            said += cleaner.feed(sample[start:end])
            start = end
        assert said + cleaner.end(final=True) == whole
        assert cleaner.used == len(sample)


@pytest.mark.parametrize("chunks", [6, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "part",
    [
        b"\x1b",
        b"\x1b[m",
        b"a\x1b[m",
        b"\x1b]",
        b"\r",
        b"x\r",
        b"x\ry\r",
        b"1,2 3 4\r5,a\r",
        b"\b",
        b"x\b",
        b"\b\bx",
        b"\x1b[1;",
        b"\xc2\x9b",
        b"\0",
        b"aaaa\0\n",
        b"h\0",
    ],
)
def test_work_grows_with_the_bytes_and_no_faster(part: bytes, chunks: int) -> None:
    chunk = part * (2**18 // len(part))

    cleaner = OutputCleaner()
    began = time.process_time()
    for _ in range(chunks):
        cleaner.feed(chunk)
    cleaner.end(final=True)
    # of 5 MiB it takes 0.1 s, and would take minutes with quadratic work
    assert time.process_time() - began < chunks * 0.1


def test_bash_and_its_spool(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash(f"{COLOURED}; {METER}")
        assert text_of(output) == "red N link\n100%\nend\n"
        output = await me.bash(f"{COLOURED}; seq 10000")
        assert output.structured["truncated"]
        assert "red N link\n1\n2\n" in text_of(output)
        kept = Path(output.structured["output_file"]).read_bytes()
        assert kept.startswith(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07N\bN ")

    on_caller(body, tmp_path)


FIRST = "(binary output: {:,} bytes; pipe it to xxd or file to look at it)\n"
NEXT = "(binary output: {:,} bytes)\n"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0 \0\0\x000\1\0\0\0\0\xae,\xb2\xd2\0\0\0\3PLTE\xff\xc8(/t\xfc"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (bytes(range(256)) * 12, FIRST.format(3072)),
        (b"before\n" + PNG + b"\nafter\n", f"before\n{FIRST.format(len(PNG))}\nafter\n"),
        (PNG + b"\n\nsecond\n" + PNG + b"\nok\n", f"{FIRST.format(len(PNG))}\n\nsecond\n{NEXT.format(len(PNG))}\nok\n"),
        (bytes(100_000) + b"after\n", f"{FIRST.format(100_000)}after\n"),
        ("Windows für Linux\r\nUbuntu\r\n".encode("utf-16-le"), "Windows für Linux\nUbuntu\n"),
        ("\ufeffпривет\r\nмир".encode("utf-16-le"), "привет\nмир"),
        ("\ufeffhello\n".encode("utf-16-be"), "hello\n"),
        (
            "适用于 Linux 的 Windows 子系统:\r\n默认 Ubuntu\r\n".encode("utf-16-le"),
            "适用于 Linux 的 Windows 子系统:\n默认 Ubuntu\n",
        ),
        (b"plain\n" + "one\r\ntwo\r\n".encode("utf-16-le") + b"plain again\n", "plain\none\ntwo\nplain again\n"),
        (b"./a\0./b c\0./d\0", "./a\n./b c\n./d\n"),
        (b"a\0b\0c\0", "a\nb\nc\n"),
        (b"PATH=/bin\0HOME=/\0", "PATH=/bin\nHOME=/\n"),
        (b"a string of C\0\n", "a string of C\n"),
        (b"a\x01b\x1fc\x7f\n", "a^Ab^_c^?\n"),
        ("café süß\n".encode("latin-1"), "caf\ufffd s\ufffd\ufffd\n"),
    ],
)
def test_binary_data_is_counted_and_other_encodings_are_text(data: bytes, text: str) -> None:
    assert clean_output(data, final=True) == (text, len(data))
    for size in (80, 512):
        cleaner = OutputCleaner()
        pieces = [cleaner.feed(data[start : start + size]) for start in range(0, len(data), size)]
        assert "".join(pieces) + cleaner.end(final=True) == text
        assert cleaner.used == len(data)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("id,name\r1,ann\r2,bob\r", "id,name\n1,ann\n2,bob"),
        ("x,y\r1,2\r3,4\n", "x,y\n1,2\n3,4\n"),
        ("10:01 request 1 done\r10:02 request 2 done\r", "10:01 request 1 done\n10:02 request 2 done"),
        ("item 1\ritem 2\rend\n", "item 1\nitem 2\nend\n"),
        ("1\r2\r3\r", "1\n2\n3"),
        ("Counting 1\rCounting 2\rCounting 3\n", "Counting 3\n"),
        ("10%\r20%\r30%\r", "30%"),
        ("step 1/5\rstep 2/5\rstep 3/5\rdone\n", "step 3/5\ndone\n"),
    ],
)
def test_rows_that_end_in_carriage_returns_stay_and_a_meters_states_do_not(raw: str, text: str) -> None:
    data = raw.encode()
    assert clean_output(data, final=True) == (text, len(data))
    for size in (1, 7, 80):
        cleaner = OutputCleaner()
        pieces = [cleaner.feed(data[start : start + size]) for start in range(0, len(data), size)]
        assert "".join(pieces) + cleaner.end(final=True) == text


def test_binary_output_is_short_in_each_answer(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        program = "head -c 3000 /bin/bash"
        assert text_of(await me.bash(program)) == FIRST.format(3000)
        task = (await me.call("BackgroundBash", command=f"{program}; echo; echo end")).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        read = (await me.call("ReadBgOutput", task_id=task)).structured["output"]
        assert read == f"{FIRST.format(3000)}\nend\n"
        output = await me.bash("head -c 300000 /bin/bash; echo; echo end")
        assert text_of(output).startswith("(binary output: ") and text_of(output).endswith("\nend\n")
        assert len(text_of(output)) < 5_000

    on_caller(body, tmp_path)


def test_utf_16_is_read_in_pieces(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        (me.workspace.root / "list").write_bytes("".join(f"Zeile {n} süß\r\n" for n in range(200)).encode("utf-16-le"))
        task = (await me.call("BackgroundBash", command="cat list")).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        text, has_more = "", True
        while has_more:
            new = await me.workspace.take(task, 1000)
            text, has_more = text + new.text, new.has_more
        assert text == "".join(f"Zeile {n} süß\n" for n in range(200))

    on_caller(body, tmp_path)


def test_the_limit_counts_what_is_shown(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        output = await me.bash(r"for i in {1..9999}; do printf '\033[1;31mx\033[0m\n'; done")
        assert text_of(output) == "x\n" * 9999
        assert not output.structured["truncated"]

    on_caller(body, tmp_path)


def test_reads_lose_and_repeat_nothing_where_they_split_a_sequence(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        command = r"for i in {1..50}; do printf '\033[1;31m%sé\033[0m\033]0;t\007 \n' $i; done"
        task = (await me.call("BackgroundBash", command=command)).structured["task_id"]
        assert await me.workspace.wait(task, BOUND)
        for limit in (16, 17, 23, 64):
            said, more = "", True
            await me.workspace.mark_read(task, 0)
            while more:
                new = await me.workspace.take(task, limit)
                said, more = said + new.text, new.has_more
            assert said == "".join(f"{number}é \n" for number in range(1, 51)), limit

    on_caller(body, tmp_path)


def test_a_running_task_is_read_up_to_its_last_whole_sequence(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        command = r"printf 'one \033[1;3'; read -r _ < <(until [ -e go ]; do sleep 0.01; done; echo); printf '1mtwo\n'"
        task = (await me.call("BackgroundBash", command=command)).structured["task_id"]
        await me.workspace.wait_output(task, 8, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "one "
        (me.workspace.root / "go").touch()
        assert await me.workspace.wait(task, BOUND)
        assert (await me.call("ReadBgOutput", task_id=task)).structured["output"] == "two\n"

    on_caller(body, tmp_path)


def test_output_that_is_held_back_is_no_progress(tmp_path: Path) -> None:
    async def body(me: Caller) -> None:
        me.wants_progress = True
        await me.bash(r"printf 'one \033[1;3'; sleep 1.2; printf '1mtwo\n'; sleep 0.3")
        assert [message for _, message, _ in me.heard] == ["one ", "two\n"]

    on_caller(body, tmp_path)


def test_progress_messages_and_the_resource_are_clean(connect: Start) -> None:
    server = connect(fresh=True)
    command = f"{COLOURED}; {METER}; sleep 1"
    server.call("Bash", {"command": command}, progressToken="t")
    told = "".join(note.get("message", "") for note in server.notes("notifications/progress"))
    assert "red N link\n" in told and "100%" in told
    task = server.call("BackgroundBash", {"command": f"{COLOURED}; {METER}"})["structuredContent"]["task_id"]
    read = {"uri": f"bg://{task}/output"}
    assert eventually(lambda: "exited" in server.request("resources/read", read)["contents"][0]["text"])
    text = server.request("resources/read", read)["contents"][0]["text"]
    assert text.startswith("red N link\n100%\nend\n[task ")
    assert not {"\x1b", "\r", "\b"} & set(told + text)
