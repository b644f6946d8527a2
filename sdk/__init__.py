"""The client SDK: channels, tables, rpc, distributed autograd, checkpoints."""
