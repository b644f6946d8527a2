"""Clusters on Kubernetes: the manifests of deploy/base, created and watched through its API."""
