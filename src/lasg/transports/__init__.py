"""How messages travel. Engines carry, they never decide."""
