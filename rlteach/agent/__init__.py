"""Rollouts that use tools: Ark-style plug-ins, run locally."""
