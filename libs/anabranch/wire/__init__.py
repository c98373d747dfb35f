"""Convert between the contract's messages and the forms of rules and log; single values:
``anabranch.values.messages``."""
