"""The server: an OpenAI-compatible gateway that verifies as it generates, and room for pages beside it.

FastAPI types stay inside this package.
"""
