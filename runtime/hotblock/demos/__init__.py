"""Real models in the Python front end: what `hotblock demo` runs. They read weights from packages that carry them."""
