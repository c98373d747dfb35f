"""An app's writes: checked, applied to the rows, and gathered into one batch."""
