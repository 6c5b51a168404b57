"""Identity: verifies passwords and the tokens of OpenID Providers. Independent of the store."""
