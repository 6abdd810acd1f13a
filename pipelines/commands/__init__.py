"""Commands of `tidemark`, grouped by task. `pipelines.cli` combines them into one program."""
