"""Identity: who somebody is, as far as passwords and OpenID Providers can tell. Knows nothing of the store."""
