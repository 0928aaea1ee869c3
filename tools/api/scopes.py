"""Name the scopes that a part may declare: what a caller over HTTP has to be granted for it."""

READ, WEB, WORKFLOW, SHELL, PLUGINS = "tools:read", "tools:web", "tools:workflow", "tools:shell", "tools:plugins"
