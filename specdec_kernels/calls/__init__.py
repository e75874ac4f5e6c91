"""The calls of ops, shared by ops and backends, neither of which imports the other."""
