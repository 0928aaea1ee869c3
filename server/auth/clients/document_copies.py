"""Hold copies of well-known clients' metadata documents, for a server that can't reach the hosts that publish them.

Each was published in October 2026. A copy that does not match its digest is not used. All of them redirect to loopback
only, so an outdated copy leaks no code.
"""

import hashlib
from collections.abc import Mapping

import msgspec


class DocumentCopy(msgspec.Struct, frozen=True):
    """`sha256` is the digest of `text`, in hexadecimal."""

    text: bytes
    sha256: str

    @property
    def is_intact(self) -> bool:
        return hashlib.sha256(self.text).hexdigest() == self.sha256


DOCUMENT_COPIES: Mapping[str, DocumentCopy] = {
    "https://claude.ai/oauth/claude-code-client-metadata": DocumentCopy(
        b'{"client_id":"https://claude.ai/oauth/claude-code-client-metadata","client_name":"Claude Code",'
        b'"client_uri":"https://claude.ai","redirect_uris":["http://localhost/callback","http://127.0.0.1/callback"],'
        b'"grant_types":["authorization_code","refresh_token"],"response_types":["code"],'
        b'"token_endpoint_auth_method":"none"}',
        "844b69e632732c325e3bae21ab324fa3d5353ba2e15890a384e8885e9837e5a4",
    ),
    "https://chatgpt.com/oauth/codex/client.json": DocumentCopy(
        b'{"client_id":"https://chatgpt.com/oauth/codex/client.json","client_uri":"https://chatgpt.com/codex",'
        b'"application_type":"native","redirect_uris":["http://127.0.0.1/callback","http://localhost/callback"],'
        b'"token_endpoint_auth_method":"none","token_endpoint_auth_methods_supported":["none"],'
        b'"grant_types":["authorization_code","refresh_token"],"response_types":["code"],"client_name":"Codex",'
        b'"logo_uri":"https://persistent.oaistatic.com/sonic/misc/openai-logo.png"}',
        "88c1677cc7dc907c07184571bba9ecaa342904424823d883270f9c8f62940004",
    ),
}
