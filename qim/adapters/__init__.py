"""Translations to the world: an adapter batches, retries what is safe, and reports Unknown when it cannot tell."""
