"""What a plugin in its own process requests of the server fits into messages."""

from toolgate.server.features.mounts.plugins.api import CONTEXT_METHODS


def test_messages_can_hold_what_plugins_request() -> None:
    for owner, methods in CONTEXT_METHODS.objects.items():
        assert methods and all(CONTEXT_METHODS.find(f"{owner}.{name}") for name in methods)
