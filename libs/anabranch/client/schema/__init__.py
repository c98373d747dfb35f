"""The tables of the file follow the server's: made, described, altered, and named as the app knows them."""
