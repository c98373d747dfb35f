"""A client of Anabranch on the generated stubs alone."""
