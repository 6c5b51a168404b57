"""The live layer: delivers committed changes to observers."""
