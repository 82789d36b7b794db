"""Policies: who writes solutions. Each is a ``surefoot.protocols.Policy`` in a file of its own.

``openai`` speaks to any OpenAI-compatible server, ``transformers`` generates in this process, and
``scripted`` answers from a plain function. Import the one you need from its own module: this package
imports none of them, so that it stays as light as the records.
"""
