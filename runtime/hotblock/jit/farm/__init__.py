"""A farm as the compiler of a runtime: settings, trust, calls, and the client that the JIT drives.

Only `settings` does without gRPC, which takes a tenth of a second to import, so nothing is imported here."""
