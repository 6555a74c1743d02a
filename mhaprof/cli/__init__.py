"""The command line: one file a command; the only code that prints, reads argv or exits."""
