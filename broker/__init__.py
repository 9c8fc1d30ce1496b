"""A small, strict Kafka broker for trying Penstock out and for its tests; never for production."""
