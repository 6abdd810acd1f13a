"""The runs in the history of Dagster: asked for, at work, unfinished, failed, dead, and purged."""
