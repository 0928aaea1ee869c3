"""Find the events of a server in this process."""

from toolgate.server.app.app import App
from toolgate.server.features.events.feature import EventsFeature
from toolgate.server.features.events.service import EventService


def events_of(app: App) -> EventService:
    """Return the events of a server."""
    (feature,) = (each for each in app.features if isinstance(each, EventsFeature))
    return feature.service()
