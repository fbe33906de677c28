"""Tests: `unit` mirrors the packages, `integration` uses real servers, `faults` kills real processes."""
