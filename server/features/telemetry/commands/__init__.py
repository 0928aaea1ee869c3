"""The commands of the audit log: show and verify it. Enter at `table`."""
