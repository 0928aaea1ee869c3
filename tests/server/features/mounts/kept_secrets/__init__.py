"""Test the secrets of mounts."""
