"""How runs look to people."""
