"""The deterministic simulation of the pipeline (docs/testing.md)."""
