"""`qimctl`: what an operator does to a running or a stopped system."""
