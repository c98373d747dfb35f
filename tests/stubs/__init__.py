"""Programs in several languages, on the contract's stubs alone."""
