"""The contract's messages from and to the forms of rules and log; single values: ``anabranch.values.messages``."""
