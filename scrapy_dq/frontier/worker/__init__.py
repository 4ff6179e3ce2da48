"""One worker's side of the frontier: its protocol, its unconfirmed moves, and its leases."""
