"""The loop of six stages, and what keeps a run safe."""
