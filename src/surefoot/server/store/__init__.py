"""The database of users, projects, labels and the gateway's requests, in SQLite or PostgreSQL."""
