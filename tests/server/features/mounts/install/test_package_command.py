"""What a command of npx or uvx runs."""

import pytest

from toolgate.server.features.mounts.install.package_command import PackageCommand, read_package_command

Read = tuple[tuple[str, ...], str, tuple[str, ...]]


@pytest.mark.parametrize(
    ("line", "packages", "program", "arguments"),
    [
        ("npx -y @scope/pkg@1.2.3 /srv -v", ("@scope/pkg@1.2.3",), "", ("/srv", "-v")),
        ("npx --yes pkg", ("pkg",), "", ()),
        ("npx -y -- pkg a", ("pkg",), "", ("a",)),
        ("/usr/bin/npx -p @scope/pkg --package=other run --now", ("@scope/pkg", "other"), "run", ("--now",)),
        ("uvx mcp-server-git --repository /r", ("mcp-server-git",), "mcp-server-git", ("--repository", "/r")),
        ("uvx mcp-server-git@2026.1.0", ("mcp-server-git==2026.1.0",), "mcp-server-git", ()),
        ("uvx mcp-server-git@latest", ("mcp-server-git",), "mcp-server-git", ()),
        ("uvx tool[extra]==2 x", ("tool[extra]==2",), "tool", ("x",)),
        ("uvx --from git+https://h/x run -q", ("git+https://h/x",), "run", ("-q",)),
        ("uv tool run --with a --with=b tool", ("tool", "a", "b"), "tool", ()),
    ],
)
def test_the_package_and_its_program_are_read(
    line: str, packages: tuple[str, ...], program: str, arguments: tuple[str, ...]
) -> None:
    command, *args = line.split()
    read = read_package_command(command, args)
    assert read is not None
    assert (read.packages, read.program, read.arguments) == (packages, program, arguments)


def test_an_interpreter_makes_another_installation() -> None:
    read = [read_package_command("uvx", [*words, "tool"]) for words in ([], ["--python", "3.12"], ["-p", "3.12"])]
    assert read[0] is not None and read[1] == read[2] != read[0]
    assert isinstance(read[1], PackageCommand) and read[1].python == "3.12"


@pytest.mark.parametrize(
    "line",
    [
        "npx",
        "npx -y",
        "npx -c 'pkg --x'",
        "npx --registry=http://r pkg",
        "uvx",
        "uvx ../path",
        "uvx --from a tool==1",
        "uv run tool",
        "uv tool",
        "node server.js",
        "npx-like pkg",
    ],
)
def test_what_can_not_be_told_is_left_as_it_is(line: str) -> None:
    command, *args = line.split()
    assert read_package_command(command, args) is None
