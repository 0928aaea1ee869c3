"""Add the indexes by which a statement finds its rows among many."""

from alembic import op

revision, down_revision = "0013", "0012"


def upgrade() -> None:
    op.create_index("callback_due", "callback", ["process", "next_at"])
    op.create_index("task_completed", "task", ["principal", "completed", "id"])
    op.create_index("ix_focus_task_id", "focus", ["task_id"])
    op.create_index("ix_focus_set_at", "focus", ["set_at"])
    op.create_index("ix_event_interest_until", "event_interest", ["until"])
    op.create_index("event_subscription_expires", "event_subscription", ["expires_at"])
    op.create_index("event_subscription_waiting", "event_subscription", ["active", "made_at"])
    op.create_index("ix_event_end_ended_at", "event_end", ["ended_at"])
    op.create_index("oauth_grant_newest", "oauth_grant", ["subject", "made_at", "revoked_at", "used_at", "expires_at"])
    op.create_index("oauth_grant_pair", "oauth_grant", ["subject", "client"])
    op.create_index("oauth_grant_unused", "oauth_grant", ["used_at", "made_at"])
    op.create_index("ix_oauth_grant_expires_at", "oauth_grant", ["expires_at"])
    op.create_index("ix_oauth_grant_revoked_at", "oauth_grant", ["revoked_at"])
    op.create_index("oauth_client_oldest", "oauth_client", ["kind", "granted_at", "made_at"])
    op.create_index("oauth_client_unused", "oauth_client", ["granted_at", "made_at"])
    op.create_index("ix_oauth_code_expires_at", "oauth_code", ["expires_at"])
    op.create_index("ix_oauth_consent_given_at", "oauth_consent", ["given_at"])
    op.create_index("oauth_consent_client", "oauth_consent", ["client"])
    op.create_index("oauth_access_denied", "oauth_access", ["denied", "expires_at"])
    op.create_index("ix_oauth_person_seen_at", "oauth_person", ["seen_at"])
    op.create_index("ix_login_until", "login", ["until"])
    op.create_index("ix_departure_until", "departure", ["until"])
    op.create_index("ix_place_moved_at", "place", ["moved_at"])
    op.create_index("session_process", "session", ["process", "seen_at"])
    op.create_index("deferral_server", "deferral", ["server", "status", "process"])
    op.create_index("deferral_expires", "deferral", ["expires_at"])
