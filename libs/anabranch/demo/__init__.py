"""The demo: a real year of departures from New York, three gate tablets that work offline, one Postgres."""
