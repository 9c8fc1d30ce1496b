"""Public types of the client library and the direct producer: metadata, futures, errors. No I/O."""
