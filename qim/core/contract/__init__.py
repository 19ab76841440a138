"""The contract core: names, ids, sequences, routing, frames, errors, parameters; one place each."""
