"""Programs for the Makefile and for developers of Tidemark.

The programs that install Python packages, Java or a browser run without any third-party package.
"""
