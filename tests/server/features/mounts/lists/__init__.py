"""What mounted servers list, kept for a start."""
