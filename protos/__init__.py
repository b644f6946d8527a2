"""The contract: messages, codec, error catalogue, sharding and limits."""
