"""The broker's rules, without sockets, files or clocks."""
