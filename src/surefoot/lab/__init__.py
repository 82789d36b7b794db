"""A small world in which the truth of every step is known, and the tiny models that live in it.

``world`` makes problems and checks every step exactly; ``solver`` is a scripted solver whose success
probability from any prefix is known in closed form; ``checkpoints`` finds the shipped language models;
``train`` makes them anew (the only file here that imports torch).
"""
