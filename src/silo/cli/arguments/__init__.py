"""What is typed: the parser, its help and its completion in a shell, and where defaults come from."""
