"""The algorithm: rules, codecs, workers, server, ledger. Imports torch and NumPy only, no engine, no I/O."""
