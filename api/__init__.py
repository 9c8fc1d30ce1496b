"""What a user of the client library holds in hands: metadata, futures, errors. No input or output."""
