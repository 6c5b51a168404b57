"""The AG-UI protocol over the same log, for AG-UI and TanStack AI clients."""
