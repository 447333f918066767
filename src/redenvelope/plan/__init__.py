"""THE RESULT: one call from log to plan; the certificate, the folder, and decisions for users."""
