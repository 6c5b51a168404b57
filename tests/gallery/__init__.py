"""The gallery of components: each state of the page compared with a committed image, and checked by axe."""
