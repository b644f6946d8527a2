"""The contract of types that several services share."""
