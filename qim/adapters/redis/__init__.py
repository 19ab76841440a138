"""The hot store: Redis or Valkey, one Lua script a request."""
