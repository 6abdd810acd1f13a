"""The commands of `tidemark`, by what a person wants to do; `pipelines.cli` puts them together."""
