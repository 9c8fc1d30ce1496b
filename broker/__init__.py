"""A small, strict Kafka broker for trials and tests of Penstock; never for production."""
