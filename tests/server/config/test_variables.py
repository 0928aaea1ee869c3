"""Which TOOLGATE_ variables a start accepts: those that Toolgate or its deployment reads."""

import re
import subprocess

import pytest

from tests.clients.raw_client import ROOT
from tests.needed_features import require_all
from toolgate.server.base.errors import UsageError
from toolgate.server.config import load

NAME = re.compile(r"\bTOOLGATE_[A-Z_]+[A-Z]\b")


def shipped_names() -> set[str]:
    """Return the names in all files that a user copies or reads."""
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "docs", "deploy"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    texts = [(ROOT / file).read_bytes().decode(errors="ignore") for file in listed if (ROOT / file).is_file()]
    return {name for text in texts for name in NAME.findall(text)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TOOLGATE_PROT", "unknown variable TOOLGATE_PROT (did you mean TOOLGATE_PORT?)"),
        ("TOOLGATE_TRUSTED_PROXY", "did you mean TOOLGATE_TRUSTED_PROXIES?"),
        ("toolgate_deny", "did you mean TOOLGATE_DENY?"),
        ("TOOLGATE_TAVLY_API_KEY", "did you mean TOOLGATE_TAVILY_API_KEY?"),
        ("TOOLGATE_GITHUB_SECRT", "did you mean TOOLGATE_GITHUB_SECRET?"),
        ("TOOLGATE_", "unknown variable TOOLGATE_; toolgate serve --help"),
        ("TOOLGATE_X_PORT", "unknown variable TOOLGATE_X_PORT"),
        ("TOOLGATE_\x1b[2J", r"unknown variable TOOLGATE_\x1b[2J"),
    ],
)
def test_an_unknown_variable_is_refused_without_its_value(name: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        load.load({}, {name: "hunter2"})
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value) and "\x1b" not in str(refused.value)


def test_an_unknown_variable_is_refused_even_if_it_is_empty() -> None:
    with pytest.raises(UsageError, match="TOOLGATE_PROT"):
        load.load({}, {"TOOLGATE_PROT": ""})


def test_every_variable_of_the_docs_and_the_deployments_is_known() -> None:
    require_all()
    names = shipped_names() - {"TOOLGATE_REDIS", "TOOLGATE_DATABASE"}
    assert {"TOOLGATE_DOMAIN", "TOOLGATE_APPARMOR", "TOOLGATE_PUBLIC_URL", "TOOLGATE_OIDC_ID"} <= names
    for name in names:
        try:
            load.load({}, {name: "x"})
        except UsageError as error:  # its value may be wrong
            assert "unknown variable" not in str(error), name


def test_service_links_are_no_slip_and_the_one_that_replaces_the_port_is_named() -> None:
    links = {
        "TOOLGATE_SERVICE_HOST": "10.96.0.7",
        "TOOLGATE_SERVICE_PORT": "80",
        "TOOLGATE_SERVICE_PORT_HTTP": "80",
        "TOOLGATE_PORT_80_TCP": "tcp://10.96.0.7:80",
        "TOOLGATE_PORT_80_TCP_ADDR": "10.96.0.7",
        "TOOLGATE_METRICS_PORT": "tcp://10.96.0.8:9090",
        "TOOLGATE_METRICS_SERVICE_PORT": "9090",
    }
    assert load.load({}, links).port == 8080
    with pytest.raises(UsageError, match="enableServiceLinks: false"):
        load.load({}, {**links, "TOOLGATE_PORT": "tcp://10.96.0.7:80"})
