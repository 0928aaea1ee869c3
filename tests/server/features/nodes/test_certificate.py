"""The certificates of a node and its servers, as the command makes them."""

from pathlib import Path

import pytest

from toolgate.server.base.errors import UsageError
from toolgate.server.config import load
from toolgate.server.features.nodes.commands.certificate import make_certificates
from toolgate.server.features.nodes.tls.certificate_file import GATEWAY, NODE, CertificateFile


def make(folder: Path, *hosts: str, to: str | None = None, replace: bool = False) -> int:
    return make_certificates(load.load({"state": str(folder / "state")}, {}), hosts=hosts, folder=to, replace=replace)


def read(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".pem"}


def test_the_files_work_and_the_output_says_where_they_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, "node1.example.com", "10.0.0.5") == 0
    folder = tmp_path / "state" / "keys"
    assert sorted(read(folder)) == ["gateway.pem", "node-authority.pem", "node1.example.com.pem"]
    assert {file.stat().st_mode & 0o777 for file in folder.glob("*.pem")} == {0o600}
    CertificateFile(folder / "node1.example.com.pem", NODE)
    CertificateFile(folder / "gateway.pem", GATEWAY)
    said = capsys.readouterr().out
    assert f"{folder}/node1.example.com.pem: the node's, for node1.example.com, 10.0.0.5." in said
    assert f"{folder}/gateway.pem: the servers'. A secret: who has it acts for everybody at the node." in said
    assert "toolgate node --listen node1.example.com:7443 --node-certificate node1.example.com.pem\n" in said
    assert f"toolgate -t --node node1.example.com:7443 --node-certificate {folder}/gateway.pem\n" in said
    assert "PRIVATE KEY" not in said


def test_further_nodes_have_the_same_authority_and_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"
    make(tmp_path, "one", to=str(folder))
    first = read(folder)
    make(tmp_path, "2001:db8::2", to=str(folder))
    assert "the servers' (as it was)" in capsys.readouterr().out
    both = read(folder)
    assert sorted(both) == ["2001-db8--2.pem", "gateway.pem", "node-authority.pem", "one.pem"]
    assert {name: both[name] for name in first} == first
    with pytest.raises(UsageError, match=r"one.pem is there: --replace makes another in its place"):
        make(tmp_path, "one", to=str(folder))
    assert read(folder) == both
    make(tmp_path, "one", to=str(folder), replace=True)
    replaced = read(folder)
    assert {name for name in both if replaced[name] != both[name]} == {"one.pem", "gateway.pem"}


def test_without_a_host_the_certificate_is_for_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, to=str(tmp_path))
    assert "localhost, 127.0.0.1, ::1. Copy" in capsys.readouterr().out
    CertificateFile(tmp_path / "node.pem", NODE)


@pytest.mark.parametrize(
    ("hosts", "to", "reason"),
    [
        (("gateway",), None, "gateway.pem is another file's name"),
        (("a/b",), None, "HOST must be an address such as"),
        (("*.example.com",), None, "HOST must be an address such as"),
        (("node:7443",), None, "HOST must be an address such as"),
        (("one",), "/proc/nowhere", "node certificate: /proc/nowhere: "),
        (("one",), "a\0b", "--folder: must be a path"),
    ],
)
def test_bad_words_are_refused(tmp_path: Path, hosts: tuple[str, ...], to: str | None, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        make(tmp_path, *hosts, to=to)
    assert reason in str(error.value)


def test_a_damaged_authority_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "node-authority.pem").write_text("x")
    with pytest.raises(UsageError, match="is damaged: move it away"):
        make(tmp_path, "one", to=str(tmp_path))
    assert (tmp_path / "node-authority.pem").read_text() == "x"
