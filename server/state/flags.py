"""Name the flags of the state: markers that tell a server on SQLite what it need not read (`Store.has_flag`)."""

APPROVALS = "approvals"  # a principal has approvals for good
CALLBACKS = "callbacks"  # a principal has a callback
EVENTS = "events"  # this principal, or any, has a log
MOUNT_BASELINE = "mount-baseline"  # the first lists of a mount were taken
MOUNT_CHOICES = "mount-choices"  # a person has switched off something of a mount
MOUNT_REFUSALS = "mount-refusals"  # a person has kept out something of a mount
PLACES = "places"  # there are directories
PLAN_ACTIVE = "plan"
PLAN_EXISTS = "plan-kept"  # active or ended
SESSIONS = "sessions"
TASKS = "deferrals"  # running or ended
