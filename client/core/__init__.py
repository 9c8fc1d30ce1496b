"""The client library's decisions, without I/O, clock or randomness."""
