"""Test signing people in at mounted servers."""
