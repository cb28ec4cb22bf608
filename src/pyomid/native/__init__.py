"""Inline functions that compiled modules share: `.pxd` files that Cython includes. The compiled modules themselves are
in the `native` packages of the modules they serve."""
