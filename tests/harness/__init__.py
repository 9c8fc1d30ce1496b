"""What the tests stand on: real clusters, a running daemon, clients with ledgers, readers, and the checker that judges them."""
