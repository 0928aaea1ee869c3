"""Name the flags of the state: markers that tell a server on SQLite what it need not read (`Store.has_flag`)."""

APPROVALS = "approvals"  # a principal has approvals for good
CALLBACKS = "callbacks"  # a principal has a callback
EVENTS = "events"  # this principal, or any, has a log
PLACES = "places"  # there are directories
PLAN_ACTIVE = "plan"
PLAN_EXISTS = "plan-kept"  # active or ended
SESSIONS = "sessions"
TASKS = "deferrals"  # running or ended
