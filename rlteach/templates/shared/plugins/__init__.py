"""The plug-ins of this workspace."""
