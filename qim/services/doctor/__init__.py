"""`qim doctor`: looks at a whole deployment, writes nothing, and says of everything what it found and what to do."""
