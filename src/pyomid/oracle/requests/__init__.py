"""How the machine serves each kind of request: one module per subject."""
