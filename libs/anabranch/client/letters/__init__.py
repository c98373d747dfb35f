"""Changes without an effect, for people to see: dead letters and values that lost a conflict."""
