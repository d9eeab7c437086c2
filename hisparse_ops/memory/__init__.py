"""Memory: the plan of all pools (`layout`, no torch) and the pools themselves."""
