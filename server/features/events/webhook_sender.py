"""Create what posts to webhooks, by the options."""

from toolgate.server.config.load import Config
from toolgate.server.features.events.webhooks.sender import WebhookSender


def create_sender(config: Config) -> WebhookSender:
    """Return what posts to webhooks, under the same limits as the web tools, whose options were checked before."""
    return WebhookSender(config.allow_private, config.refuse_networks)
