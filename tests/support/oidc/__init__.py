"""OpenID Providers for tests: a real one in another process, and a forged one in this process."""
