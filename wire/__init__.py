"""What crosses a process boundary. Imports nothing of ours and does no I/O."""
