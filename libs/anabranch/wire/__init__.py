"""Between the contract's messages and cells: the only place that knows which arm of Value holds which kind."""
