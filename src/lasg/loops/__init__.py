"""Training loops of the user's own: the lazy optimizer."""
