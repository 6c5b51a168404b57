"""Archives: an account's data as one ZIP file, which is exported as a stream and imported into another deployment."""
