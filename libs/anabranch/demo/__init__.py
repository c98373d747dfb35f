"""The demo: a real year of departures from New York, gate tablets that work offline, one Postgres."""
