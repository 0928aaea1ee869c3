"""The version of this release. It is a constant: asking the installed distribution costs 13 ms of start-up."""

VERSION = "0.1.0"
