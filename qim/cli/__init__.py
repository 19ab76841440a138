"""The `qim …` commands: they read arguments and call what the other layers do; no logic of their own."""
