"""What people switch off for themselves."""
