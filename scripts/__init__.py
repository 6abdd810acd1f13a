"""Programs of the Makefile and of developers. Those that bring Python packages, Java and a browser need no package."""
