"""Reward models behind a server: opened by their address, asked, and the commands that start the server."""
