"""Version 1; generated from the .proto files beside it."""
