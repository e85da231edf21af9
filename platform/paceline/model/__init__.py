"""The nouns. Frozen dataclasses over the standard library; they travel as JSON and through Ray unchanged."""
