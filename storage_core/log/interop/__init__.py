"""The log's protocol as other writers speak it: what they write, and what we write for tools that read nothing else.

The rest of the log writes one dialect and reads it without this folder; it asks here where a file may be of others.
"""
