"""The dashboard of an app whose calls are not recorded anywhere."""

from toolgate.server.app.app import App
from toolgate.server.calls.dashboard import Dashboard
from toolgate.server.calls.recent_calls import RecentCalls
from toolgate.server.state.audit.store import EntryReader


def create_dashboard(app: App, own_entries: EntryReader | None = None) -> Dashboard:
    host, server = app.host, app.host.server()
    parts = host.store(), host.clock(), host.workspaces(), RecentCalls(), own_entries
    return Dashboard(server.services.peek, server.policy, *parts)
