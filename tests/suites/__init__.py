"""Suites that every backend of a store passes; a backend's own test module inherits the class and brings a harness."""
