"""Tokens of a real authorization server: that of a second Toolgate, which Authlib carries."""

import hashlib
from pathlib import Path

from tests.clients.raw_http_client import site
from tests.server.features.mounts.grants.far_grants import CLIENT, SECRET
from tests.server.features.mounts.grants.test_client_credentials import run
from tests.server.features.mounts.kept_secrets.test_secrets import secret
from tests.server.features.mounts.mounted import url_mount, write_config

CLIENTS = f"""[[client]]
id = "{CLIENT}"
name = "A gateway"
grant_types = ["client_credentials"]
secret_sha256 = "{hashlib.sha256(SECRET.encode()).hexdigest()}"
scope = "tools:read tools:web"
"""


def test_a_second_toolgate_gives_a_token_to_a_client_for_itself(tmp_path: Path) -> None:
    (tmp_path / "clients.toml").write_text(CLIENTS)
    options = ("--auth", "oauth", "--clients", str(tmp_path / "clients.toml"))
    with site(tmp_path / "far", *options) as far:
        keys = (
            'auth = "client_credentials"',
            f'client_id = "{CLIENT}"',
            'client_secret = "${secret:FAR}"',
            f'token_url = "{far.url}/token"',
        )
        write_config(tmp_path, url_mount(f"{far.url}/mcp", "far", *keys, 'scopes = ["tools:read"]'))
        state = tmp_path / "state"
        assert secret(state, "set", "FAR", value="another one").returncode == 0
        said = run(tmp_path, state, "mount", "test", "far")
        assert "TOKEN_REFUSED" in said and "invalid_client" in said and "check client_id and client_secret" in said, (
            said
        )
        assert secret(state, "set", "FAR", value=SECRET).returncode == 0
        said = run(tmp_path, state, "mount", "test", "far")
        assert said.startswith("far: ") and " tools" in said, said
