"""Programs for the Makefile and for developers.

The programs that install Python packages, Java and a browser do not need any package.
"""
