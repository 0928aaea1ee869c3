"""Where a program of `open_program` may go, at each level."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.tools import shell_commands
from tests.tools.fake_web_site import site
from tests.tools.shell_commands import ran
from tests.tools.workspace.commands.test_program_streams import program, read_all
from tests.tools.workspace.sandbox.test_sandbox import folder, sandbox, workspace
from toolgate.tools import ToolError
from toolgate.tools.workspace.local_workspace import LocalWorkspace
from toolgate.tools.workspace.workspace import ProgramAccess

__all__ = ["folder"]  # the fixture
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
pytestmark = [needs_root, pytest.mark.programs("bwrap")]
TABLE = "[mounts.far]"
ASK = """ask() {
exec 3<>/dev/tcp/127.0.0.1/3128 || return
printf 'GET %s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' "$1" >&3
cat <&3 | tail -1
}
"""


def access(**how: Any) -> ProgramAccess:
    return ProgramAccess(TABLE, **how)


async def said(mine: LocalWorkspace, script: str, **how: Any) -> tuple[str, str]:
    """Return what a program writes to its standard output and error."""
    async with program(mine, script, **how) as stream:
        return (await read_all(stream)).decode(), await stream.stderr_tail()


@pytest.mark.parametrize("network", ["none", "public", "all"])
def test_a_program_reaches_its_hosts_whatever_commands_reach(folder: Path, network: str) -> None:
    async def body() -> None:
        async with site({"/": b"page\n"}) as place, workspace(folder, sandbox("bwrap", network=network)) as mine:
            script = f"{ASK} echo $https_proxy; ask {place.url()}; ask http://localhost:{place.port}/"
            script += f"; (exec 4<>/dev/tcp/127.0.0.1/{place.port}) 2>/dev/null || echo closed"
            output, error = await said(mine, script, access=access(hosts=("127.0.0.1",)))
            why = f'refused: localhost is not in the list; add "localhost" to network of {TABLE}'
            assert output == f"http://127.0.0.1:3128\npage\n{why}\nclosed\n", error
            assert error == f"toolgate: {why}\n"
            assert place.connections == 1

    asyncio.run(body())


def test_the_log_names_a_refused_host_but_no_key(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with workspace(folder, sandbox("bwrap")) as mine:
            script = f"{ASK} ask http://My-Key-1.test/; ask http://a.test/"
            _, error = await said(mine, script, env={"KEY": "My-Key-1"}, access=access(hosts=("b.test",)))
            assert error.count("is not in the list") == 2

    asyncio.run(body())
    (told,) = [record.message for record in caplog.records if "is not in the list" in record.message]
    assert told == f'a program of {TABLE} is refused: a.test is not in the list; add "a.test" to network of {TABLE}'


@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_a_program_with_no_hosts_reaches_nothing_where_commands_reach_all(folder: Path, level: str) -> None:
    async def body() -> None:
        async with site({"/": b"page"}) as place, workspace(folder, sandbox(level, network="all")) as mine:
            reach = f"(exec 4<>/dev/tcp/127.0.0.1/{place.port}) 2>/dev/null && echo open; echo $https_proxy"
            assert await ran(mine, reach) == b"open\n\n"
            assert (await said(mine, reach))[0] == "open\n\n"
            assert (await said(mine, reach, access=access(hosts=())))[0] == "\n"

    asyncio.run(body())


def test_a_program_sees_its_files_and_writes_to_those_it_may(folder: Path) -> None:
    data, drop, secret = folder / "data", folder / "drop", folder / "secret"
    for each in (data, drop, secret):
        each.mkdir(mode=0o777)
        each.chmod(0o777)
        (each / "file").write_text(f"{each.name}\n")
    folder.chmod(0o755)
    script = f"cd {folder}; cat */file; echo x >data/new; echo x >drop/new && echo written"

    async def body() -> None:
        async with workspace(folder, sandbox("bwrap")) as mine:
            what = access(readable_paths=(data,), writable_paths=(drop,))
            output, error = await said(mine, script, access=what)
            assert output == "data\ndrop\nwritten\n", error
            assert "data/new: Read-only file system" in error
            assert (drop / "new").read_text() == "x\n"
            assert b"No such file" in await ran(mine, f"cat {data}/file 2>&1"), "commands see nothing of them"
            output, error = await said(mine, script, access=what, shows=[folder])
            assert output == "data\ndrop\nsecret\nwritten\n", error

    asyncio.run(body())


def test_one_file_and_a_socket_can_be_shown(folder: Path) -> None:
    (folder / "one").write_text("one\n")
    (folder / "two").write_text("two\n")

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard\n")
        writer.close()

    async def body() -> None:
        server = await asyncio.start_unix_server(answer, folder / "socket")
        (folder / "socket").chmod(0o777)
        async with server, workspace(folder, sandbox("bwrap")) as mine:
            ask = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{folder}/socket'); print(s.recv(9))"
            what = access(readable_paths=(folder / "one", folder / "socket"))
            output, error = await said(mine, f'cat {folder}/one {folder}/two; python3 -c "{ask}"', access=what)
            assert output == "one\nb'heard\\n'\n", error

    asyncio.run(body())


@pytest.mark.parametrize("level", ["bwrap", "uid"])
def test_what_is_the_servers_own_is_shown_to_no_program(folder: Path, level: str) -> None:
    state = folder / "state"
    (state / "keys").mkdir(parents=True)
    (folder / "link").symlink_to(state / "keys")

    async def body() -> None:
        async with workspace(folder, sandbox(level, hidden_paths=[state])) as mine:
            for path in (state, state / "keys", folder, folder / "link", folder / "link" / "key"):
                for what in (access(readable_paths=(path,)), access(writable_paths=(path,))):
                    with pytest.raises(ToolError, match=r"^files of \[mounts.far\]: .* of the server's own"):
                        await mine.open_program(["true"], env={}, access=what)
            for word in ("/", "/proc", "/sys/kernel", "/dev/mem", "/tmp"):
                with pytest.raises(ToolError, match=f"files of .*: {word} is the system's own"):
                    await mine.open_program(["true"], env={}, access=access(readable_paths=(Path(word),)))
            with pytest.raises(ToolError, match=r"files of \[mounts.far\]: there is no "):
                await mine.open_program(["true"], env={}, access=access(readable_paths=(folder / "gone",)))
            inside = mine.root / "data"
            inside.mkdir()
            for what in (access(readable_paths=(inside,)), access(writable_paths=(inside,))):
                with pytest.raises(ToolError, match="is in the workspace"):
                    await mine.open_program(["true"], env={}, access=what)
            both = access(writable_paths=(folder / "drop",))
            (folder / "drop").mkdir(mode=0o777)
            (folder / "drop").chmod(0o777)
            if level == "bwrap":
                assert (await said(mine, "pwd; >new", access=both, shows=both.writable_paths, cwd=folder / "drop")) == (
                    f"{folder}/drop\n",
                    "",
                )
            with pytest.raises(ToolError, match="has the workspace or the command's folder"):
                await mine.open_program(["true"], env={}, access=access(writable_paths=(mine.root.parent,)))
            assert not mine.limits.programs

    asyncio.run(body())


def test_a_level_that_holds_no_program_to_its_places_refuses_it(folder: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with workspace(folder, sandbox("uid")) as mine:
            with pytest.raises(ToolError, match=r"at the level uid nothing holds it to the hosts of \[mounts.far\]"):
                await mine.open_program(["true"], env={}, access=access(hosts=("a.example",)))
        async with shell_commands.workspace(tmp_path) as mine:
            for what in (access(hosts=("a.example",)), access(hosts=()), access(readable_paths=(folder,))):
                with pytest.raises(ToolError, match=r"without a sandbox nothing holds it"):
                    await mine.open_program(["true"], env={}, access=what)

    asyncio.run(body())
