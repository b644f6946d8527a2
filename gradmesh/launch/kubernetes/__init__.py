"""Clusters on Kubernetes: the manifests of deploy/base, sent and watched through its API."""
