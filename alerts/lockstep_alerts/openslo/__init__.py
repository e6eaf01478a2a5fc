"""Objectives as OpenSLO v1 documents, and OpenSLO documents as objectives."""
