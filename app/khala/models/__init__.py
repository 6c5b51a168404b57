"""Language models behind one port: providers, and the scripted demo model that ships with Khala."""
