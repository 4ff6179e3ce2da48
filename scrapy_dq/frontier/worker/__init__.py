"""One worker's side of the frontier: its protocol, what is not confirmed yet, and what it holds."""
