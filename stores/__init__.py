"""Stores: mailbox, messages and leases, each an interface with a Redis backend and an in-memory one."""
