"""Commands of `tidemark`, grouped by task. `pipelines.cli` combines these commands into one program."""
