"""`toolgate doctor --url` in a private network, where small teams live: the name is a note, and all else is checked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT

WITHIN = 120  # seconds
pytestmark = pytest.mark.programs("ip", "unshare")


def test_the_name_of_a_private_network_is_a_note_and_the_other_checks_go_on(tmp_path: Path) -> None:
    spaces = ["unshare", "--user", "--map-root-user", "--net"]
    command = [*spaces, sys.executable, "-m", "tests.server.features.remote_checks.private_network", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 0, done.stdout + done.stderr
    untrusted, trusted, called = map(json.loads, done.stdout.splitlines())
    assert "certificate" in called and "name the file of that certificate in SSL_CERT_FILE" in called

    assert untrusted["first"] == "TLS" and "SSL_CERT_FILE=root.crt toolgate doctor" in find(untrusted, "TLS")["remedy"]
    assert [each["name"] for each in untrusted["checks"] if each["verdict"] == "FAIL"] == ["TLS"]
    name = find(trusted, "name")
    assert (name["verdict"], name["finding"]) == ("note", "10.77.0.1 is private")
    assert name["remedy"] == "only clients in this network reach it: claude.ai and ChatGPT don't"
    verdicts = [each["verdict"] for each in trusted["checks"]]
    assert trusted["ok"] and verdicts.count("ok") + verdicts.count("note") >= 22, trusted


def find(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in report["checks"] if each["name"] == name)
    return found
