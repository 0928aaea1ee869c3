"""Describe what a part of the server reports of itself: its health, its metrics, and its rows on the first page.

Features and rooms of the core add such reports to `AppHost`. Enter at the file of the report.
"""
