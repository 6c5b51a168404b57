"""OpenID Providers for tests: a real one as a process, and a forger's in this one."""
