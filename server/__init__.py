"""Toolgate's core. Its version is told here, since asking the installed distribution costs 13 ms of start-up."""

VERSION = "0.1.0"
