"""The conformance tests of the Model Context Protocol: fixtures, the program that runs them, and expected results."""
