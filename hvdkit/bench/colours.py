"""Colours of plots and pages: told apart by people with any kind of colour vision, readable on white and on black.

A plot is drawn in the light colours. Inside a page each of them becomes a CSS variable, which has another value where
the reader prefers a dark page. Colour is never alone: lines differ in markers, bars in hatching, and tables repeat all.
"""

LIGHT = {
    "page": "#ffffff",
    "text": "#1b1f24",
    "muted": "#57606a",
    "grid": "#d8dee4",
    "panel": "#f4f6f8",
    "blue": "#0a6ab6",
    "orange": "#b35a00",
    "green": "#00795a",
    "purple": "#9a3f86",
    "grey": "#6a737d",
}
DARK = {
    "page": "#14171c",
    "text": "#e6eaf0",
    "muted": "#a3adba",
    "grid": "#343b45",
    "panel": "#1d222a",
    "blue": "#5cb3f2",
    "orange": "#f0a032",
    "green": "#35c9a4",
    "purple": "#e095cf",
    "grey": "#9aa5b1",
}
SERIES = ("blue", "orange", "green", "purple")


def css() -> str:
    """Both sets as CSS variables; the reader's system chooses."""

    def variables(colours: dict[str, str]) -> str:
        return " ".join(f"--{name}: {value};" for name, value in colours.items())

    return (
        f":root {{ color-scheme: light dark; {variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    )


def as_variables(svg: str) -> str:
    """A plot in the light colours, with CSS variables in their place."""
    for name, value in LIGHT.items():
        svg = svg.replace(value, f"var(--{name})")
    return svg
