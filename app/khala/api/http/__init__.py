"""HTTP: bounded requests, hosts, origins, problem details, rate limits and static files."""
