"""What the machine does for each kind of request; each module has one subject."""
