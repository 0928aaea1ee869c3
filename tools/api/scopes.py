"""Name the scopes that a part may declare: the grant that a caller over HTTP needs for it."""

READ, WEB, WORKFLOW, SHELL, PLUGINS = "tools:read", "tools:web", "tools:workflow", "tools:shell", "tools:plugins"
