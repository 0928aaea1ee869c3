"""Tokens for mounts that nobody signs in for."""
