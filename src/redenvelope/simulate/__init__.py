"""KNOWN TRUTH: campaigns whose dynamics are known, so that every later claim can be checked."""
