"""Pictures of stored runs. Never runs anything."""
