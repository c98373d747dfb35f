"""Between the contract's messages and what rules and log take; single values: ``anabranch.values.messages``."""
