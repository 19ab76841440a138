"""The release gate: everything that can be proved on one machine, and a verdict that says when something was not proved."""
