"""The command `lasg`. Public is the command; no module here is for users or an extension point."""
