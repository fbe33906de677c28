"""Changelog-backed tables: page writes and the rows that the graph keeps (ADAPT-05)."""
