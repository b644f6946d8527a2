"""The contract: messages, codec, rpc tables, error catalogue, sharding and limits."""
