"""Commands about databases, tables, their policies, nodes and keys."""
