"""Load generator and benchmarks: open loop, latencies measured at the clients, verdicts from recorded history."""
