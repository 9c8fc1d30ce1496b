"""What the client library decides, without input, output, clock or chance."""
