"""The feed of Kubernetes: objects and pods of a server become events of jobs."""
