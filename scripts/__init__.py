"""Programs of the Makefile: they bring Python packages, Java and a browser along. Standard library only."""
