"""The report of `tidemark report`: what is in it, how it is drawn, and the page."""
