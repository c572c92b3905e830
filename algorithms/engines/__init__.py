"""Where the workers live: engines answer what an algorithm asks for."""
