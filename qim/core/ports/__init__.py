"""Port vocabularies shared by machines: requests and their replies as plain data, one file a port."""
