"""Charts and heat maps, drawn as SVG."""
