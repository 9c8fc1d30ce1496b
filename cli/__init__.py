"""The command line. The only folder that sees both daemon and client."""
