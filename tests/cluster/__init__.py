"""The chart on a real API server. `make cluster-test` runs what is here; `make test` doesn't collect it, since building
the programs that it needs takes long."""
