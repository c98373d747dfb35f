"""Changes that a batch's statements cause beside those that they name."""
