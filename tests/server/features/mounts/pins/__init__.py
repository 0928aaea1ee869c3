"""What was approved of mounted servers."""
