"""The lines of docs/quickstart-hosted.md, typed in their order on an empty Debian: from nothing to a client that signs
in, through an upgrade and a restored backup, to removal.

A page's block without an excuse is run by tests/docs. `NOT_TYPED` has the lines that no test runs."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, ROOT, eventually
from tests.deploy.debian import ADDRESS, BESIDE, Debian, debian
from tests.deploy.proxies import program
from tests.docs.pages import Block, page

PAGE = page("docs/quickstart-hosted.md")
CACHE = ROOT / "build" / "debian"
NAME, AUTHORITY = "tools.example.com", "acme-v02.api.letsencrypt.org"
REPOSITORY = "/srv/toolgate.git"  # the page's ADDRESS
NEXT = "99.0.0"
NOT_TYPED = {  # no machine here has AppArmor
    "install -m 644 deploy/apparmor/toolgate /etc/apparmor.d/toolgate",
    "apparmor_parser -r /etc/apparmor.d/toolgate",
    "mkdir -p /etc/systemd/system/toolgate.service.d",
    r"printf '[Service]\nAppArmorProfile=toolgate\n' > /etc/systemd/system/toolgate.service.d/apparmor.conf",
}
DOWNLOADS = re.compile(r"apt-get |git (?:clone|pull)|/opt/toolgate/bin/pip ")
FILES = re.compile(r"(?:install|ln|sed|cat|mkdir|printf) ")  # lines that need neither the network nor a service
LOG = "journalctl --no-pager -n 50"
FIND = "find / -xdev -path '*toolgate*' -not -path '/srv/*' -not -path '/root/*'; getent passwd toolgate"
STAND_IN = """
{
    admin off
    skip_install_trust
    auto_https disable_redirects
    storage file_system %s
}
https://acme-v02.api.letsencrypt.org {
    tls internal
    rewrite /directory /acme/local/directory
    acme_server
}
"""


@dataclass(frozen=True)
class Step:
    """The commands of a block that has an excuse. One with a here-document is one command."""

    block: Block

    @property
    def lines(self) -> list[str]:
        parts = re.findall(r"^.*<<'END'\n(?:.*\n)*?END$|^.+$", self.block.text, re.M)
        return [re.sub(r" +# .*$", "", part) for part in parts]

    @property
    def output(self) -> str:
        """The regular expression for what the page shows below, or ""."""
        (shown,) = [block.text for block in PAGE.of("text") if block.follows is self.block] or [""]
        return ".*?".join(re.escape(part) for part in shown.strip().split("…"))


def steps() -> list[Step]:
    return [Step(block) for block in PAGE.of("sh") if block.excuse is not None]


def test_the_page_has_each_line_that_is_not_typed_and_its_block_says_why() -> None:
    left = [step for step in steps() if step.block.excuse == "it takes Ubuntu"]
    assert {line for step in left for line in step.lines} == NOT_TYPED


def test_the_lines_that_write_files_need_no_folder_that_an_empty_debian_lacks(tmp_path: Path) -> None:
    root, source = tmp_path / "root", "/usr/local/src/toolgate"
    for folder in ("etc/systemd/system", "etc/apparmor.d", "etc/caddy", "opt/toolgate"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "local" / "bin").mkdir(parents=True)
    (tmp_path / "local" / "src" / "toolgate").mkdir(parents=True)
    commands = [line for step in steps() for line in step.lines if FILES.match(line)]
    sandbox = [program("bwrap", "bubblewrap"), "--unshare-all", "--ro-bind", "/usr", "/usr", "--dev", "/dev"]
    for link in filter(Path.is_symlink, map(Path, ("/bin", "/lib", "/lib64"))):
        sandbox += ["--symlink", str(link.readlink()), str(link)]
    for here, there in ((root / "etc", "/etc"), (root / "opt", "/opt"), (tmp_path / "local", "/usr/local")):
        sandbox += ["--bind", str(here), there]
    sandbox += ["--ro-bind", str(ROOT), source, "--chdir", source]
    done = subprocess.run(
        [*sandbox, "bash", "-ec", "\n".join(commands)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    options = root / "etc" / "toolgate" / "toolgate.env"
    assert options.stat().st_mode & 0o777 == 0o600
    assert f"\nTOOLGATE_PUBLIC_URL=https://{NAME}\n" in options.read_text()
    unit = (root / "etc" / "systemd" / "system" / "toolgate.service").read_text()
    documents = re.findall(r"^Documentation=file://(\S+)$", unit, re.M)
    assert documents and all((root / path.lstrip("/")).is_file() for path in documents)
    assert (tmp_path / "local" / "bin" / "toolgate").readlink() == Path("/opt/toolgate/bin/toolgate")
    caddyfile = ["adapt", "--config", str(root / "etc" / "caddy" / "Caddyfile")]
    subprocess.run([program("caddy", "caddy"), *caddyfile], check=True, capture_output=True, timeout=PATIENCE)


def commit(folder: Path, message: str) -> None:
    own = ["-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "commit.gpgsign=false"]
    for words in (["add", "-A"], [*own, "commit", "-q", "-m", message]):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=PATIENCE)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with this tree in its one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, timeout=PATIENCE).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, timeout=PATIENCE)
    commit(folder, "first")
    return folder


def pack(repository: Path) -> bytes:
    """Return the repository as a tar file of what `git clone` reads."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(repository / ".git", ".")
        return file.getvalue()


def release(repository: Path) -> None:
    """Commit a next version, without one of the files."""
    version = repository / "server" / "base" / "version.py"
    text, count = re.subn(r'^VERSION = ".*"', f'VERSION = "{NEXT}"', version.read_text(), flags=re.M)
    assert count == 1
    version.write_text(text)
    (repository / "plugins" / "sleep.py").unlink()
    commit(repository, "next")


@contextlib.contextmanager
def certificate_authority(machine: Debian, folder: Path) -> Iterator[Path]:
    """Run a stand-in for Let's Encrypt on the host beside the machine; yield its certificate."""
    (folder / "Caddyfile").write_text(STAND_IN % folder)
    run = [program("caddy", "caddy"), "run", "--config", str(folder / "Caddyfile")]
    certificate = folder / "pki" / "authorities" / "local" / "root.crt"
    with (folder / "log").open("wb") as log:
        environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
        process = subprocess.Popen(machine.beside(run, environment), stdout=log, stderr=log)
    try:
        assert eventually(lambda: process.poll() is not None or certificate.exists())
        assert process.poll() is None, (folder / "log").read_text()
        yield certificate
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.contextmanager
def start_client(machine: Debian, certificate: Path, code: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield the client on the host beside the machine."""
    words = [sys.executable, "-m", "tests.deploy.hosted_client", f"https://{NAME}", str(certificate), code]
    environment = {"PYTHONPATH": str(ROOT), "SSL_CERT_FILE": str(certificate), "PATH": os.environ["PATH"]}
    client = subprocess.Popen(
        machine.beside(words, environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield client
    finally:
        client.kill()
        client.communicate()


def type_lines(machine: Debian, step: Step) -> str:
    """Type a block's lines, each of which must succeed, and return what they print."""
    output = ""
    for line in step.lines:
        if line not in NOT_TYPED:
            command = line.replace("ADDRESS", REPOSITORY)
            done = machine.run(command, downloads=DOWNLOADS.match(line) is not None)
            assert done.returncode == 0, (line, done.stdout[-3000:], done.stderr[-3000:], machine.run(LOG).stdout)
            output += done.stdout
    assert not step.output or re.fullmatch(step.output, output.strip(), re.S), output
    return output


@pytest.mark.soak
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_page_leads_from_an_empty_debian_to_a_signed_in_client_and_back(
    suite: str, repository: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can boot a machine")
    hosts = f"{ADDRESS} {NAME}\n{BESIDE} {AUTHORITY}\n"
    (tmp_path / "authority").mkdir()
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(debian(suite, tmp_path / "machine", CACHE, hosts))
        certificate = stack.enter_context(certificate_authority(machine, tmp_path / "authority"))
        machine.write("/usr/local/share/ca-certificates/stand-in.crt", certificate.read_text())
        machine.unpack(pack(repository), REPOSITORY)
        client: subprocess.Popen[str] | None = None
        for step in steps():
            if "git pull" in step.lines:
                release(repository)
                machine.unpack(pack(repository), REPOSITORY)
            output = type_lines(machine, step)
            if code := re.search("pairing code ([A-Z0-9-]+)", output):
                client = stack.enter_context(start_client(machine, certificate, code[1]))
                assert read_line(client) == "signed in: user\n"
            if "toolgate doctor" in step.block.text:
                assert "\nAll is well: " in output, output
            if "git pull" in step.lines:
                assert machine.run("toolgate --version").stdout == f"toolgate {NEXT}\n"
                assert machine.run("ls /opt/toolgate/lib/python3.*/site-packages/toolgate/plugins/sleep.py").returncode
                assert client is not None and client.stdin is not None
                client.stdin.write("restarted\n")
                client.stdin.flush()
                assert read_line(client) == "went on: here file\n"
            if "toolgate restore" in step.block.text:
                assert (
                    machine.run("runuser -u toolgate -- toolgate user list").stdout.splitlines()[1].split()[0] == "ada"
                )
                assert f'"serving https://{NAME}"' in machine.run("systemctl status toolgate").stdout
        assert machine.run(FIND).stdout == ""


def read_line(client: "subprocess.Popen[str]") -> str:
    assert client.stdout is not None and client.stderr is not None
    return client.stdout.readline() or client.stderr.read()
