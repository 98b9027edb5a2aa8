"""OpenAI-compatible HTTP over an Engine."""
