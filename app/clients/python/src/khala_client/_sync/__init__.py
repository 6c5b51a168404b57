"""The client without asyncio. All modules but `core` are made from `khala_client._async` by infra/python_client.py."""
