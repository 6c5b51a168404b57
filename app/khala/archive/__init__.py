"""Archives: all that an account has as one ZIP file, written as a stream, and read back into another deployment."""
