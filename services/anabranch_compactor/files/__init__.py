"""Files of the lake: written by tasks, told of by them, and removed when nobody needs them."""
